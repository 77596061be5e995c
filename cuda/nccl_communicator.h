// Ranks as processes with a GPU each, over NCCL.
//
// Collectives on the GPU run on the stream that is current where they are started, on memory that NCCL moves
// fastest if it is from allocate(). They are watched (nccl_watchdog.h): when a rank does not come by the
// deadline, or NCCL fails, they are aborted, and start(), wait() and every wait for the GPU throw CommError.
// What ranks tell each other in CPU tensors goes over `control`.
//
// NCCL adds in an order and, for bfloat16 and float16, with roundings of its own, which depend on the number
// of ranks, sizes and the machine: the promise of sums in rank order is for CPU tensors alone. The same run
// on the same machine gives the same bits.
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
  /// Connects the ranks that `control` connects and that have joined `store`. With one rank NCCL has nothing
  /// to do, and `store` may be null. Throws UserError (ranks that share a GPU, NCCL that does not fit) or
  /// CommError.
  NcclCommunicator(const Environment& environment, std::unique_ptr<CudaDevice> device,
                   std::shared_ptr<Communicator> control, const StorePointer& store);
  ~NcclCommunicator() override;

  /// Registered with NCCL unless it is small.
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
  bool registers_ = false;  // memory from allocate(), and as windows
  bool windows_ = false;
  bool grouping_ = false;
  std::vector<CollectiveCall> held_back_;  // of the open group
  // Null with one rank.
  std::shared_ptr<NcclComms> comms_;
  std::unique_ptr<StreamProbe> probe_;
  std::shared_ptr<NcclWatchdog> watchdog_;
  int check_ = 0;  // the device's, of the watchdog
};

}  // namespace zerorun
