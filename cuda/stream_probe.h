// Reports the state of collectives through CUDA events before and after each one, and through NCCL's errors.
// Owned by the communicator. The thread that starts a collective records its events; the watchdog's thread
// queries them. Every thread that calls started() or finished() must have made the GPU its current one.
#pragma once

#include <cuda_runtime_api.h>

#include <deque>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "cuda/nccl_comms.h"
#include "cuda/nccl_watchdog.h"

namespace zerorun {

class StreamProbe : public CollectiveProbe {
 public:
  /// Probes collectives on GPU `device`.
  StreamProbe(int device, std::shared_ptr<NcclComms> comms) : device_(device), comms_({std::move(comms)}) {}
  ~StreamProbe() override;
  StreamProbe(const StreamProbe&) = delete;
  StreamProbe& operator=(const StreamProbe&) = delete;

  /// Probes `comms` too, and aborts them with the others.
  void add(std::shared_ptr<NcclComms> comms);
  void record_before(size_t slot, cudaStream_t stream);
  void record_after(size_t slot, cudaStream_t stream);

  void enter_thread() override;
  void prepare(size_t count) override;
  bool started(size_t slot) override;
  bool finished(size_t slot) override;
  std::string failure() override;
  void abort() override;

 private:
  struct Events {
    cudaEvent_t before;
    cudaEvent_t after;
  };

  Events events_of(size_t slot);
  bool has_passed(cudaEvent_t event);

  const int device_;
  std::vector<std::shared_ptr<NcclComms>> all() const;

  mutable std::mutex mutex_;  // protects comms_ and events_
  std::vector<std::shared_ptr<NcclComms>> comms_;
  std::deque<Events> events_;  // by slot
  std::string cuda_failure_;   // used only by the watchdog's thread
};

}  // namespace zerorun
