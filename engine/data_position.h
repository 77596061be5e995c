// How far a training has come in its data: one position for all ranks, which checkpoints have and which any
// number of ranks can continue from, so that every sample is used exactly once in each epoch.
//
//   zerorun::DataPosition position(data.size(), seed);
//   engine.attach(position);                    // checkpoints have it from now on
//   engine.load_newest("runs/1");               // restores it too, if there is a checkpoint
//   while (position.epoch() < epochs) {
//     auto loss = model->loss(data.get(position.samples()));  // this rank's micro-batch
//     engine.backward(loss);
//     engine.step();
//     position.advance();                       // on all ranks
//   }
//
// Samples are numbered over all epochs. A micro-step takes the next micro-batch x ranks numbers, each rank
// its own part of them, in rank order. So an optimizer step has the same samples on any number of ranks if
// its global batch is the same. A batch at the end of an epoch goes on with the first samples of the next
// one.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <vector>

namespace zerorun {

/// Copies share one position. Used by one thread at a time.
class DataPosition {
 public:
  /// How a micro-step's samples are divided among ranks. Engine::attach() sets it from the config and the
  /// mesh.
  struct Division {
    int64_t micro_batch = 1;  // samples of each rank
    int64_t ranks = 1;
    int64_t rank = 0;
  };

  /// The beginning of data with this many samples. Each epoch has all of them, in an order that depends on
  /// `seed` and the epoch only (shuffled_sample()). Throws UserError unless there is a sample.
  explicit DataPosition(int64_t samples, uint64_t seed = 0);

  void divide(const Division& division);

  /// The epoch of the next sample, and its number within that epoch, from 0.
  int64_t epoch() const;
  int64_t index() const;
  /// Samples that all ranks have used so far, in all epochs: the number of the next one.
  int64_t used() const;
  void set_used(int64_t samples);

  // After a checkpoint of other data (another number of samples or another seed) has been loaded, the
  // functions below throw UserError until set_used() has said where to begin.

  /// This rank's samples in the micro-step that is `ahead` micro-steps after the next one, for loaders that
  /// read ahead: as numbers over all epochs, and as indices of the data.
  std::vector<int64_t> numbers(int64_t ahead = 0) const;
  std::vector<int64_t> samples(int64_t ahead = 0) const;
  /// The samples of so many micro-steps, of all ranks, have been used. Call it alike on all ranks, after the
  /// step() of the micro-step and before a checkpoint is saved.
  void advance(int64_t micro_steps = 1);
  /// For engines: `action` runs at the end of each advance() from now on; none if it is empty.
  void when_advanced(std::function<void()> action);

  // For checkpoints.
  std::vector<uint8_t> saved() const;
  /// Throws UserError if `saved` is none of saved().
  void restore(std::span<const uint8_t> saved);

 private:
  struct State;
  void check_usable() const;

  std::shared_ptr<State> state_;
};

}  // namespace zerorun
