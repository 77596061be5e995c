// A communicator whose collectives can be switched off, to measure a step without communication. For
// benchmarks only: without collectives, ranks train independently of one another.
#pragma once

#include <memory>
#include <utility>

#include "comm/communicator.h"
#include "comm/notices.h"

namespace zerorun {

class SilenceableCommunicator : public Communicator {
 public:
  /// `shares_memory`: allows shared memory, if `real` has it. It must be false for a communicator that will
  /// be silenced, because silenced ranks compute different values and would overwrite each other's.
  SilenceableCommunicator(std::shared_ptr<Communicator> real, bool shares_memory)
      : Communicator(real->rank(), real->world_size(), real->timeout(), real->device()),
        real_(std::move(real)),
        shares_memory_(shares_memory) {}

  void silence() { silent_ = true; }

  at::Tensor allocate(int64_t numel, at::ScalarType dtype) override { return real_->allocate(numel, dtype); }
  at::Tensor allocate_shared(int64_t numel, at::ScalarType dtype) override {
    return shares_memory_ ? real_->allocate_shared(numel, dtype) : at::Tensor();
  }
  at::Tensor make_own(const at::Tensor& shared) override { return real_->make_own(shared); }
  std::unique_ptr<Notices> open_notices() override { return real_->open_notices(); }
  int64_t scratch_bytes() const override { return real_->scratch_bytes(); }

 private:
  struct Nothing : Work {
    void wait() override {}
  };

  std::unique_ptr<Work> start(CollectiveCall call) override {
    if (silent_) return std::make_unique<Nothing>();
    switch (call.kind) {
      case Collective::reduce_scatter:
        return real_->reduce_scatter(call.output, call.input, call.label);
      case Collective::all_gather:
        return real_->all_gather(call.output, call.input, call.label, call.reason);
      case Collective::all_reduce:
        return real_->all_reduce(call.output, call.label);
      case Collective::broadcast:
        return real_->broadcast(call.output, call.root, call.label);
      case Collective::barrier:
        break;
    }
    return real_->barrier(call.label);
  }

  std::shared_ptr<Communicator> real_;
  bool shares_memory_;
  bool silent_ = false;
};

}  // namespace zerorun
