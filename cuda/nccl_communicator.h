// A Communicator over NCCL: every rank is a process with a GPU.
//
// Collectives on the GPU run on the current stream of the thread that starts them; NCCL is fastest on memory
// from allocate(). A watchdog (nccl_watchdog.h) aborts them when a rank misses the deadline or NCCL fails;
// then start(), wait() and every host wait for the GPU throw CommError. Collectives on CPU tensors go over
// `control`.
//
// NCCL's order of additions and, for bfloat16 and float16, its intermediate roundings depend on the number
// of ranks, the sizes and the machine: only sums of CPU tensors are in rank order. The same run on the same
// machine gives the same bits.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "comm/communicator.h"
#include "comm/job_store.h"
#include "comm/notices.h"
#include "comm/rendezvous.h"
#include "cuda/cuda_device.h"
#include "cuda/nccl_comms.h"
#include "cuda/nccl_watchdog.h"
#include "cuda/stream_probe.h"

namespace zerorun {

class NcclCommunicator : public Communicator {
 public:
  /// Connects the same ranks as `control` and `store`. With one rank it does not use NCCL, and `store` may be
  /// null. Throws UserError (ranks share a GPU, unsuitable NCCL version) or CommError.
  NcclCommunicator(const Environment& environment, std::unique_ptr<CudaDevice> device,
                   std::shared_ptr<Communicator> control, const StorePointer& store);
  ~NcclCommunicator() override;

  /// Registered with NCCL if it is at least kSmallestNcclMemory bytes and NCCL can do that on all ranks.
  at::Tensor allocate(int64_t numel, at::ScalarType dtype) override;
  std::unique_ptr<Notices> open_notices() override { return control_->open_notices(); }

 private:
  std::unique_ptr<Work> start(CollectiveCall call) override;
  void open_group() override;
  void close_group(bool abandoned) override;

  void connect(const StorePointer& store);
  void disconnect(bool in_peace);
  NcclComms::Ids agree_on_ids(const StorePointer& store, size_t count) const;
  std::unique_ptr<Work> start_on_cpu(CollectiveCall call);
  void copy_to_self(const CollectiveCall& call);
  void issue(std::span<const CollectiveCall> calls);
  cudaStream_t current_stream() const;

  std::unique_ptr<CudaDevice> owned_device_;
  std::shared_ptr<Communicator> control_;
  bool registers_ = false;  // allocate() registers memory with NCCL
  bool windows_ = false;    // as windows
  bool grouping_ = false;
  std::vector<CollectiveCall> held_back_;  // calls of the open group
  // Null with one rank.
  std::shared_ptr<NcclComms> comms_;
  std::unique_ptr<StreamProbe> probe_;
  std::shared_ptr<NcclWatchdog> watchdog_;
  int check_ = 0;  // id of the watchdog's check in the device's streams
};

}  // namespace zerorun
