// A Communicator over NCCL, for ranks that are processes with a GPU each. Collectives on GPU tensors run on
// the current stream of the calling thread; NCCL is fastest on memory from allocate(). Collectives on CPU
// tensors use `control`. If a rank misses the deadline or NCCL fails, a watchdog (cuda/nccl_watchdog.h)
// aborts the collectives; then start(), wait() and every host wait for the GPU throw CommError.
//
// NCCL's order of additions, and for bfloat16 and float16 its intermediate roundings, depend on the number of
// ranks, the sizes and the machine. So only sums of CPU tensors are in rank order. Repeated runs on the same
// machine give the same bits.
#pragma once

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "comm/communicator.h"
#include "comm/connect/rendezvous.h"
#include "comm/meeting/job_store.h"
#include "comm/notices.h"
#include "cuda/cuda_device.h"
#include "cuda/nccl_comms.h"
#include "cuda/nccl_messages.h"
#include "cuda/nccl_registration.h"
#include "cuda/nccl_watchdog.h"
#include "cuda/stream_probe.h"

namespace zerorun {

class NcclCommunicator : public Communicator {
 public:
  /// Connects the ranks of `control` and `store`. With one rank NCCL is not used and `store` may be null.
  /// `shares_gpu`: ranks of the job share a GPU, although perhaps none of `control` do.
  /// Throws UserError if ranks share a GPU and NCCL does not support that, or if the NCCL version is
  /// unsuitable. Throws CommError if the ranks do not connect.
  NcclCommunicator(const Environment& environment, std::shared_ptr<CudaDevice> device,
                   std::shared_ptr<Communicator> control, const StorePointer& store, bool shares_gpu = false);
  ~NcclCommunicator() override;

  /// Memory of at least kSmallestNcclMemory bytes is registered with NCCL if ZERORUN_NCCL_REGISTER says so
  /// and all ranks support that.
  at::Tensor allocate(int64_t numel, at::ScalarType dtype) override;
  void announce_failure(const std::string& error) noexcept override { control_->announce_failure(error); }
  std::unique_ptr<Notices> open_notices() override { return control_->open_notices(); }
  /// Throws UserError under the conditions of split().
  void open_messages(const std::vector<std::pair<int, int>>& pairs) override;

 private:
  std::unique_ptr<Work> start(CollectiveCall call) override;
  std::unique_ptr<Work> start_message(MessageCall call) override;
  /// A group has NCCL communicators of its own on the same GPU. Throws UserError where NCCL does not
  /// prevent deadlocks between them ([Note: two communicators] in cuda/nccl_comms.h).
  std::shared_ptr<Communicator> make_part(const std::vector<RankGroup>& groups, size_t own,
                                          RankGroup group) override;
  void open_group() override;
  void close_group(bool abandoned) override;

  void check_launch_order(const std::string& what) const;
  void connect(const StorePointer& store);
  void disconnect(bool in_peace);
  NcclComms::Ids agree_on_ids(const StorePointer& store, size_t count) const;
  std::unique_ptr<Work> start_on_cpu(CollectiveCall call);
  void copy_to_self(const CollectiveCall& call);
  void issue(std::span<const CollectiveCall> calls);
  cudaStream_t current_stream() const;

  std::shared_ptr<CudaDevice> owned_device_;  // shared with the communicators of groups
  std::shared_ptr<Communicator> control_;
  StorePointer store_;  // null with one rank
  int splits_ = 0;
  bool shares_gpu_;
  bool orders_launches_ = true;  // NCCL orders the launches of several communicators, on every rank
  NcclRegistration registration_ = NcclRegistration::none;  // of memory from allocate()
  bool grouping_ = false;
  std::vector<CollectiveCall> held_back_;  // calls that the open group holds back
  // The next three are null with one rank.
  std::shared_ptr<NcclComms> comms_;
  std::unique_ptr<StreamProbe> probe_;
  std::shared_ptr<NcclWatchdog> watchdog_;
  std::shared_ptr<NcclMessages> messages_;
  int check_ = 0;  // id of the check that was added to the device's streams
};

}  // namespace zerorun
