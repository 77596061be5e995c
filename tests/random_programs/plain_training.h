// Computes the results of training with plain LibTorch, by the rules of docs/architecture.md ("Precision",
// "Why the bits are the same"). One thread holds every rank's parameters, without buckets, collectives or any
// engine code.
#pragma once

#include <torch/torch.h>

#include <memory>
#include <string>
#include <vector>

#include "tests/random_programs/model.h"

namespace zerorun::testing {

inline constexpr double kLearningRate = 0.125;
inline constexpr double kWeightDecay = 0.0625;
inline constexpr double kClipping = 0.5;
inline constexpr int kScaleWindow = 2;
/// The learning rate of the program's own schedule for `group` after `applied` applied steps.
double scheduled_rate(int64_t applied, int group);

class PlainTraining {
 public:
  explicit PlainTraining(const Program& program);

  /// The parameters of `rank`. They differ between ranks only where the program makes them differ.
  const std::vector<at::Tensor>& parameters(int rank) const { return models_[rank]->all; }
  int ranks() const { return setup_.ranks; }

  /// Does the work of initialize(): all ranks get rank 0's values, and earlier optimizer state and gradients
  /// are dropped. At stage 3 every call except the first makes a new model, because the values become
  /// inaccessible when an engine is destroyed.
  void begin(bool first);
  /// Runs backward of every rank's loss. `reduces` is false inside a no_sync scope. If `plain`, the program
  /// calls loss.backward() instead of engine.backward(). The engine then divides gradients by the number of
  /// micro-steps when it copies them.
  void backward(const std::vector<at::Tensor>& losses, bool retain, bool reduces, bool plain);
  /// Drops all gradients since the last optimizer step, as the engine does after a backward that threw on all
  /// ranks.
  void drop_gradients();
  bool has_gradients() const { return has_gradients_; }

  enum class Ending { goes_on, schedule_throws, scale_at_minimum };
  Ending step();
  /// The numbers that the engine reports about its last step, as text.
  std::string report() const;

 private:
  // The gradient of one parameter in one accumulation window.
  struct Gradient {
    std::vector<at::Tensor> local;  // by rank, before the reduction; undefined: none
    std::vector<at::Tensor> late;   // by rank, computed after the reduction has started (stages 0 and 1)
    at::Tensor reduced;             // summed over ranks
  };
  struct State {
    at::Tensor master;  // float32
    at::Tensor first;
    at::Tensor second;
  };

  bool by_shards() const { return setup_.stage >= 2; }
  bool is_boundary() const { return (micro_steps_ + 1) % setup_.micro_steps == 0; }
  bool sums_apart() const;
  double scale() const { return setup_.precision == Precision::fp16 ? loss_scale_ : 1; }
  at::Tensor over_ranks(const std::vector<at::Tensor>& by_rank, const at::Tensor& like) const;
  void take(Gradient& gradient, const std::vector<at::Tensor>& by_rank, const at::Tensor& like,
            float divided) const;
  void reduce_local();
  void finish_reduction();
  double norm() const;
  void update(double norm);
  void apply_rule(State& state, at::Tensor gradient, double rate) const;
  bool follow_loss_scale(bool overflow);
  double rate_of(int group) const;

  const Program& program_;
  const Setup& setup_;
  at::ScalarType training_;
  at::ScalarType travelling_;
  at::ScalarType accumulating_;
  double factor_;   // multiplies gradients before the sum over ranks
  double divisor_;  // divides the sum over ranks
  std::vector<std::shared_ptr<Model>> models_;
  std::vector<int> trained_;
  std::vector<State> states_;        // one for each parameter; unused for frozen parameters
  std::vector<Gradient> gradients_;  // one for each parameter
  bool made_sums_ = false;           // stages 0 and 1: the engine has allocated separate sums
  bool departed_ = false;            // this window's gradients have been reduced (stages 0 and 1)
  bool has_gradients_ = false;
  int64_t micro_steps_ = 0;
  int64_t steps_ = 0;
  int64_t applied_ = 0;
  bool was_applied_ = false;
  double norm_ = 0;
  double loss_scale_ = 1;
  int hysteresis_ = 1;
  int64_t last_overflow_ = -1;
};

}  // namespace zerorun::testing
