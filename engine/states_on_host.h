// engine.offload_states(): moves the optimizer's states out of a rank's GPU memory while the program needs
// that memory for something else (generating text between updates), and back unchanged. Owned by the engine,
// used by its thread.
//
// On CPU ranks nothing moves, but the engine refuses the same calls, so that a program that runs on CPUs also
// runs on GPUs.
#pragma once

#include <span>
#include <vector>

#include "comm/communicator.h"
#include "zero/slice_store.h"

namespace zerorun {

class StatesOnHost {
 public:
  /// Both arguments must outlive this object.
  StatesOnHost(const SliceStore& store, Communicator& communicator);

  /// Whether offload() was called since the last reload().
  bool away() const { return away_; }
  /// Moves the store's states of these kinds out of the GPU's memory. The states must not be used until
  /// reload(). Waits for all work of this rank. If an allocation fails, nothing has moved.
  void offload(std::span<const StateKind> kinds);
  /// Moves the states back. A collective, because the memory of gradients comes from the communicator, where
  /// all ranks must allocate the same sizes in the same order. If an allocation fails, the call may be
  /// repeated.
  void reload();
  /// Whether `state` is in the host's memory now.
  bool has(const StateTensor& state) const;
  /// Bytes of page-locked memory, kept for the next offload().
  int64_t bytes() const;

 private:
  struct Moved {
    at::Tensor memory;  // the store's tensor; without memory while `away`
    at::Tensor on_host;
    bool is_sent = false;  // collectives read and write this state
    bool away = false;
  };

  Moved& find_or_add(const StateTensor& state);
  void finish_all_work() const;

  const SliceStore* store_;
  Communicator* communicator_;
  bool away_ = false;
  std::vector<Moved> moved_;
};

}  // namespace zerorun
