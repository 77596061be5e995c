// A communicator whose collectives can be switched off, to measure a step without communication. For
// benchmarks only: without collectives, ranks train independently of one another.
#pragma once

#include <memory>
#include <utility>
#include <vector>

#include "comm/communicator.h"
#include "comm/notices.h"

namespace zerorun {

class SilenceableCommunicator : public Communicator {
 public:
  /// `shares_memory`: allows shared memory, if `real` has it. It must be false for a communicator of data
  /// ranks that will be silenced, because silenced ranks compute different values and would overwrite each
  /// other's.
  SilenceableCommunicator(std::shared_ptr<Communicator> real, bool shares_memory)
      : Communicator(real->rank(), real->world_size(), real->timeout(), real->device()),
        real_(std::move(real)),
        shares_memory_(shares_memory) {
    if (!real_->group_of_ranks().name.empty()) set_group(real_->group_of_ranks());
  }

  /// From now on no collective does anything.
  void silence() { silent_ = Silent::all; }
  /// From now on sums do nothing, nor do all-gathers in place, which are the second half of a large sum.
  /// Other all-gathers do, so that ranks read no memory that nobody wrote.
  void silence_sums() { silent_ = Silent::sums; }

  at::Tensor allocate(int64_t numel, at::ScalarType dtype) override { return real_->allocate(numel, dtype); }
  at::Tensor allocate_shared(int64_t numel, at::ScalarType dtype) override {
    return shares_memory_ ? real_->allocate_shared(numel, dtype) : at::Tensor();
  }
  bool shares_memory() const override { return shares_memory_ && real_->shares_memory(); }
  at::Tensor make_own(const at::Tensor& shared) override { return real_->make_own(shared); }
  void give_back_pages(const at::Tensor& part) override { real_->give_back_pages(part); }
  std::unique_ptr<Notices> open_notices() override { return real_->open_notices(); }
  int64_t scratch_bytes() const override { return real_->scratch_bytes(); }
  void open_messages(const std::vector<std::pair<int, int>>& pairs) override { real_->open_messages(pairs); }

 private:
  enum class Silent { nothing, sums, all };

  struct Nothing : Work {
    void wait() override {}
  };

  bool is_silent(const CollectiveCall& call) const {
    if (silent_ != Silent::sums) return silent_ == Silent::all;
    return call.kind == Collective::all_reduce || call.kind == Collective::reduce_scatter ||
           (call.kind == Collective::all_gather && call.input.storage().is_alias_of(call.output.storage()));
  }

  std::shared_ptr<Communicator> make_part(const std::vector<RankGroup>& groups, size_t /*own*/,
                                          RankGroup /*group*/) override {
    return std::make_shared<SilenceableCommunicator>(real_->split(groups), shares_memory_);
  }

  std::unique_ptr<Work> start(CollectiveCall call) override {
    if (is_silent(call)) return std::make_unique<Nothing>();
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

  std::unique_ptr<Work> start_message(MessageCall call) override {
    return call.is_send ? real_->send(call.tensor, call.receiver, call.label)
                        : real_->receive(call.tensor, call.sender, call.label);
  }

  std::shared_ptr<Communicator> real_;
  bool shares_memory_;
  Silent silent_ = Silent::nothing;
};

}  // namespace zerorun
