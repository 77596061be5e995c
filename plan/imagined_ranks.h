// The device and the communicator of a plan. Tensors have sizes but no memory (LibTorch's meta device),
// kernels do nothing, and the other ranks are imagined: in a collective they do what this rank does. So the
// engine runs as it is, for any number of ranks, and what it allocates and sends can be counted. Small
// numbers that the host reads (tallies, the facts of a step, shapes of messages) are real. One thread.
#pragma once

#include <array>
#include <deque>
#include <map>
#include <memory>
#include <utility>

#include "comm/communicator.h"

namespace zerorun {

/// Messages that have values, from plans of some ranks to plans of others that are made after them: by sender
/// and receiver, as numbers in the job.
using ImaginedMail = std::map<std::pair<int, int>, std::deque<at::Tensor>>;

struct ImaginedRanks {
  int rank = 0;  // the planned one
  int world_size = 1;
  bool on_gpu = false;                           // else on CPUs
  bool shares_memory = false;                    // the ranks are on the CPUs of one host
  int ranks_on_host = 0;                         // 0: all
  std::shared_ptr<ImaginedMail> mail = nullptr;  // null: no rank sends messages that have values
};

std::unique_ptr<Device> make_imagined_device(bool on_gpu);

class ImaginedCommunicator : public Communicator {
 public:
  /// `device` is of make_imagined_device().
  ImaginedCommunicator(const ImaginedRanks& ranks, Device& device);

  at::Tensor allocate_shared(int64_t numel, at::ScalarType dtype) override;
  bool shares_memory() const override { return shares_memory_; }
  std::unique_ptr<Notices> open_notices() override;
  /// Bytes that this rank has sent in collectives of the kind, of what has no memory here: parameters and
  /// gradients.
  double bytes_sent(Collective kind) const { return bytes_->at(static_cast<size_t>(kind)); }
  double elements_sent(Collective kind) const { return elements_->at(static_cast<size_t>(kind)); }
  /// Bytes that this rank has sent in messages of this communicator, likewise.
  double bytes_of_messages() const { return message_bytes_; }
  /// Bytes that this rank has sent to ranks of other hosts, in this communicator and those of groups: as each
  /// rank talks to each other, and if ranks of a host sum and share first (comm/two_level/).
  double bytes_between_hosts() const { return across_->flat; }
  double bytes_between_hosts_on_levels() const { return across_->on_levels; }

 private:
  using Counts = std::array<double, kCollectiveKinds>;
  struct Across {
    double flat = 0, on_levels = 0;
  };

  std::unique_ptr<Work> start(CollectiveCall call) override;
  std::unique_ptr<Work> start_message(MessageCall call) override;
  std::shared_ptr<Communicator> make_part(const std::vector<RankGroup>& groups, size_t own,
                                          RankGroup group) override;
  bool is_on_own_host(int rank) const;

  bool shares_memory_;
  int ranks_on_host_;
  int boards_ = 0;
  // Shared with the communicators of groups.
  std::shared_ptr<Counts> bytes_ = std::make_shared<Counts>();
  std::shared_ptr<Counts> elements_ = std::make_shared<Counts>();
  std::shared_ptr<Across> across_ = std::make_shared<Across>();
  double message_bytes_ = 0;
  std::shared_ptr<ImaginedMail> mail_;
};

}  // namespace zerorun
