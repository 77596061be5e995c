#include "comm/two_level/two_level_communicator.h"

#include <ATen/ops/full.h>

#include <algorithm>
#include <map>
#include <utility>

#include "base/activity_board.h"
#include "base/error.h"
#include "comm/scratch_buffers.h"
#include "comm/two_level/relay.h"

namespace zerorun {
namespace {

// What the collectives of a communicator use.
struct Use {
  Levels levels;
  ScratchBuffers scratch;
  Relay relay;

  explicit Use(Levels given)
      : levels(std::move(given)),
        scratch([host = levels.host](int64_t bytes) { return host->allocate(bytes, at::kByte); }),
        relay(levels.host->timeout(), [this] { return announced_failure(); }) {}

  std::string announced_failure() const noexcept {
    std::string failure = levels.host->announced_failure();
    return failure.empty() ? levels.across->announced_failure() : failure;
  }
};

class TwoLevelCollective : public TwoPhases {
 public:
  /// `use` owns the relay, which may own this object.
  TwoLevelCollective(Use& use, CollectiveCall call)
      : TwoPhases(call.kind, {}),
        use_(&use),
        call_(std::move(call)),
        into_shared_(call_.kind == Collective::all_gather && use.levels.host->is_shared(call_.output)) {
    first = start_first();
  }

  /// Its label and kind do not change; its tensors are let go of at the end.
  const CollectiveCall& call() const { return call_; }

  Works start_second() override {
    Works works;
    switch (call_.kind) {
      case Collective::reduce_scatter:
        works.push_back(across().reduce_scatter(call_.output, buffer_, call_.label));
        break;
      case Collective::all_gather:
        if (into_shared_) {
          fill_shared();
          // Copies nothing: it waits until the other ranks have filled it. A barrier would have no order
          // among the barriers whose first phases start meanwhile.
          works.push_back(host().all_gather(of_host(call_.output, across().rank()), call_.input,
                                            label_for(across().rank()), call_.reason));
          break;
        }
        for (int number = 0; number < hosts(); ++number) {
          works.push_back(host().all_gather(of_host(call_.output, number), of_host(buffer_, number),
                                            label_for(number), call_.reason));
        }
        break;
      case Collective::all_reduce:
        works.push_back(across().all_reduce(call_.output, call_.label));
        break;
      case Collective::broadcast:
        works.push_back(host().broadcast(call_.output, call_.root % host().world_size(), call_.label));
        break;
      case Collective::barrier:
        works.push_back(across().barrier(call_.label));
        break;
    }
    return works;
  }

  // Lets go of the caller's tensors too: a thread may keep this object for a moment.
  void finish() override {
    if (buffer_.defined()) use_->scratch.give_back(std::exchange(buffer_, at::Tensor()));
    call_.input.reset();
    call_.output.reset();
  }

  // Ranks of other hosts miss this one, and look there for the reason.
  void fail(const std::string& error) noexcept override { across().note_failure(error); }

 private:
  Works start_first() {
    Works works;
    switch (call_.kind) {
      case Collective::reduce_scatter:
        take_buffer(call_.output);
        for (int number = 0; number < hosts(); ++number) {
          works.push_back(host().reduce_scatter(of_host(buffer_, number), of_host(call_.input, number),
                                                label_for(number)));
        }
        break;
      case Collective::all_gather:
        take_buffer(call_.input);
        works.push_back(across().all_gather(buffer_, call_.input, call_.label, call_.reason));
        break;
      case Collective::all_reduce:
        works.push_back(host().all_reduce(call_.output, call_.label));
        break;
      case Collective::broadcast:
        if (host().rank() == call_.root % host().world_size())
          works.push_back(across().broadcast(call_.output, call_.root / host().world_size(), call_.label));
        break;
      case Collective::barrier:
        works.push_back(host().barrier(call_.label));
        break;
    }
    return works;
  }

  Communicator& host() const { return *use_->levels.host; }
  Communicator& across() const { return *use_->levels.across; }
  int hosts() const { return across().world_size(); }
  std::string label_for(int number) const { return call_.label + " (host " + std::to_string(number) + ")"; }

  // The part of `tensor` that belongs to a host.
  at::Tensor of_host(const at::Tensor& tensor, int number) const {
    const int64_t numel = tensor.numel() / hosts();
    return tensor.narrow(0, number * numel, numel);
  }

  // The ranks of the host have one output, in which each has its slice. It adds those of the ranks with its
  // place on other hosts.
  void fill_shared() const {
    for (int number = 0; number < hosts(); ++number) {
      if (number == across().rank()) continue;
      const at::Tensor slice = of_host(buffer_, number);
      of_host(call_.output, number).narrow(0, host().rank() * slice.numel(), slice.numel()).copy_(slice);
    }
  }

  // For a slice of each host.
  void take_buffer(const at::Tensor& slice) {
    buffer_ = use_->scratch.take(slice.numel() * hosts(), slice.scalar_type());
  }

  Use* use_;
  CollectiveCall call_;
  bool into_shared_;
  at::Tensor buffer_;
};

class TwoLevelWork : public Work {
 public:
  TwoLevelWork(std::shared_ptr<Use> use, std::shared_ptr<TwoLevelCollective> collective, int rank)
      : use_(std::move(use)), collective_(std::move(collective)), rank_(rank) {}

  void wait() override {
    check_not_forked(home_, rank_, "a collective");
    const CollectiveCall& call = collective_->call();
    const ShownWait shown(name_of(call.kind), call.label, call.reason);
    use_->relay.wait(collective_);
  }

 private:
  HomeProcess home_;
  std::shared_ptr<Use> use_;
  std::shared_ptr<TwoLevelCollective> collective_;
  int rank_;
};

// A rank's place: the number of its host, and its place on that host.
struct Place {
  int host;
  int on_host;
};

// The groups into which a split divides ranks at one level, in which all members are numbers at that level.
class LevelGroups {
 public:
  void add(size_t group, const std::string& name, int rank) {
    RankGroup& added = groups_[group];
    added.name = name;
    added.ranks.push_back(rank);
  }
  std::vector<RankGroup> all() const {
    std::vector<RankGroup> groups;
    for (const auto& [number, group] : groups_) groups.push_back(group);
    return groups;
  }

 private:
  std::map<size_t, RankGroup> groups_;  // by the number of the group that is divided
};

class TwoLevelCommunicator : public Communicator {
 public:
  TwoLevelCommunicator(Levels levels, RankGroup ranks, OpenNotices open_notices)
      : Communicator(levels.across->rank() * levels.host->world_size() + levels.host->rank(),
                     levels.across->world_size() * levels.host->world_size(), levels.host->timeout()),
        use_(kept_by_forks(std::make_shared<Use>(std::move(levels)))),
        open_notices_(std::move(open_notices)) {
    ZR_CHECK(std::ssize(ranks.ranks) == world_size(), "the ranks of all hosts");
    if (!ranks.name.empty()) set_group(std::move(ranks));
    host().set_unrecorded();
    across().set_unrecorded();
  }

  at::Tensor allocate(int64_t numel, at::ScalarType dtype) override { return host().allocate(numel, dtype); }

  at::Tensor allocate_shared(int64_t numel, at::ScalarType dtype) override {
    use_->relay.drain();  // the host's collectives are in one order on all of its ranks
    at::Tensor shared = host().allocate_shared(numel, dtype);
    at::Tensor lacking = at::full({1}, shared.defined() ? 0 : 1, at::kLong);
    all_reduce(lacking, "room for memory that ranks of a host share")->wait();
    return lacking.item<int64_t>() == 0 ? shared : at::Tensor();
  }
  at::Tensor make_own(const at::Tensor& shared) override { return host().make_own(shared); }
  void give_back_pages(const at::Tensor& part) override { host().give_back_pages(part); }
  int ranks_sharing() const override { return host().ranks_sharing(); }
  bool is_shared(const at::Tensor& tensor) const override { return host().is_shared(tensor); }

  void set_sum_group(int ranks) override {
    if (ranks != 0 && groups_of_sums(ranks) != sum_groups()) {
      const std::string on_host = std::to_string(host().world_size());
      throw UserError("sums over groups of " + std::to_string(ranks) +
                      " ranks (zerorun.sum_group), where each host has " + on_host +
                      " ranks, which are summed first: set it to " + on_host +
                      ", leave it out, or let all ranks talk to each other (--comm gloo)");
    }
    Communicator::set_sum_group(ranks);
  }

  int sum_group() const override { return host().world_size(); }
  std::vector<int> sum_groups() const override {
    return std::vector<int>(static_cast<size_t>(across().world_size()), host().world_size());
  }

  void announce_failure(const std::string& error) noexcept override {
    host().announce_failure(error);
    across().announce_failure(error);
  }

  std::string transport() const override { return "shared memory on each host, Gloo between hosts"; }

  std::string announced_failure() noexcept override { return use_->announced_failure(); }
  void note_failure(const std::string& error) noexcept override { across().note_failure(error); }

  std::unique_ptr<Notices> open_notices() override {
    return open_notices_("board " + std::to_string(boards_++));
  }

  int64_t scratch_bytes() const override {
    return host().scratch_bytes() + across().scratch_bytes() + use_->scratch.bytes();
  }

 private:
  Communicator& host() const { return *use_->levels.host; }
  Communicator& across() const { return *use_->levels.across; }
  Place place_of(int rank) const { return {rank / host().world_size(), rank % host().world_size()}; }

  std::unique_ptr<Work> start(CollectiveCall call) override {
    auto collective = std::make_shared<TwoLevelCollective>(*use_, std::move(call));
    use_->relay.add(collective);
    return std::make_unique<TwoLevelWork>(use_, std::move(collective), rank_in_job(rank()));
  }

  std::unique_ptr<Work> start_message(MessageCall call) override {
    const Place other = place_of(call.other());
    const Place own = place_of(rank());
    const bool is_near = other.host == own.host;
    if (!is_near && other.on_host != own.on_host) {
      throw UserError(
          describe(call, group_of_ranks().ranks) +
          ": they are on two hosts and have different places there, and only ranks with one place "
          "are connected: give both hosts' ranks the same order, or let all ranks talk to each "
          "other (--comm gloo)");
    }
    Communicator& level = is_near ? host() : across();
    const int there = is_near ? other.on_host : other.host;
    return call.is_send ? level.send(std::move(call.tensor), there, std::move(call.label))
                        : level.receive(std::move(call.tensor), there, std::move(call.label));
  }

  std::shared_ptr<Communicator> make_part(const std::vector<RankGroup>& groups, size_t own,
                                          RankGroup group) override {
    check_even(groups);
    use_->relay.drain();
    const Place mine = place_of(rank());
    LevelGroups near, far;
    for (size_t number = 0; number < groups.size(); ++number) {
      for (const int member : groups[number].ranks) {
        const Place place = place_of(member);
        if (place.host == mine.host) near.add(number, groups[number].name, place.on_host);
        if (place.on_host == mine.on_host) far.add(number, groups[number].name, place.host);
      }
    }
    Levels parts{.host = host().split(near.all()), .across = across().split(far.all())};
    if (parts.across->world_size() == 1) return parts.host;
    if (parts.host->world_size() == 1) return parts.across;
    const std::string name = "group" + std::to_string(splits_++) + "-" + std::to_string(own) + " ";
    return std::make_shared<TwoLevelCommunicator>(
        std::move(parts), std::move(group),
        [open = open_notices_, name](const std::string& board) { return open(name + board); });
  }

  // Throws unless the ranks of each group have the same places on each of the group's hosts.
  void check_even(const std::vector<RankGroup>& groups) const {
    for (const RankGroup& group : groups) {
      std::map<int, std::vector<int>> places;  // by host
      for (const int member : group.ranks) places[place_of(member).host].push_back(place_of(member).on_host);
      const std::vector<int>& first = places.begin()->second;
      if (std::ranges::all_of(places, [&](const auto& its) { return its.second == first; })) continue;
      throw UserError(
          "the " + zerorun::describe(group) +
          " has different places on its hosts, and only ranks with one place are connected: choose a "
          "mesh whose groups have as many ranks on each host, or let all ranks talk to each other "
          "(--comm gloo)");
    }
  }

  std::shared_ptr<Use> use_;
  OpenNotices open_notices_;
  int boards_ = 0;
  int splits_ = 0;
};

}  // namespace

std::shared_ptr<Communicator> make_two_level_communicator(Levels levels, RankGroup ranks,
                                                          OpenNotices open_notices) {
  return std::make_shared<TwoLevelCommunicator>(std::move(levels), std::move(ranks), std::move(open_notices));
}

}  // namespace zerorun
