// engine.offload_states(): the optimizer's states leave a rank's GPU while the program needs its memory for
// something else (generating text between updates), and come back as they were. Owned by the engine, used by
// its thread.
//
// Where ranks compute in the host's memory nothing moves, and the engine refuses the same calls: a program
// that runs there runs on GPUs.
#pragma once

#include <span>
#include <vector>

#include "comm/communicator.h"
#include "zero/slice_store.h"

namespace zerorun {

class StatesOnHost {
 public:
  /// Both outlive it.
  StatesOnHost(const SliceStore& store, Communicator& communicator);

  /// Whether offload() was called since the last reload().
  bool away() const { return away_; }
  /// Moves what the store has of these kinds in the GPU's memory. Nothing of it may be used until reload().
  /// Waits for all work of this rank. Where an allocation fails nothing has moved.
  void offload(std::span<const StateKind> kinds);
  /// Where an allocation fails the call may be repeated.
  void reload();
  /// Whether it has left the GPU's memory.
  bool has(const StateTensor& state) const;
  /// Page-locked; kept for the next offload().
  int64_t bytes() const;

 private:
  struct Moved {
    at::Tensor memory;  // as the store has it; without memory while it is away
    at::Tensor on_host;
    bool away = false;
  };

  Moved& find_or_add(const at::Tensor& memory);
  void finish_all_work() const;

  const SliceStore* store_;
  Communicator* communicator_;
  bool away_ = false;
  std::vector<Moved> moved_;
};

}  // namespace zerorun
