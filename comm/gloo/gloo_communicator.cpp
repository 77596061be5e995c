// The gloo/*.h headers come from comm/gloo/gloo_declarations.
#define USE_C10D_GLOO 1
#include "comm/gloo/gloo_communicator.h"

#include <algorithm>
#include <array>
#include <cstdlib>
#include <torch/csrc/distributed/c10d/ProcessGroupGloo.hpp>
#include <utility>

#include "base/broken_pipes.h"
#include "base/error.h"
#include "base/fnv1a.h"
#include "base/process.h"
#include "base/route.h"
#include "comm/deadline.h"
#include "comm/gloo/gloo_messages.h"
#include "comm/gloo/gloo_work.h"
#include "comm/meeting/exchange.h"
#include "comm/meeting/store_notices.h"
#include "comm/thread_communicator.h"

namespace zerorun {
namespace {

// A forked child has copies of its parent's works, but no thread that transfers messages. A child that waited
// for such a copy or destroyed it would disturb the parent. So wait() throws in a child, and a child never
// destroys its copy of `work_`.
class WorkOfThisProcess : public Work {
 public:
  WorkOfThisProcess(std::shared_ptr<Work> work, int rank)
      : rank_(rank), work_(kept_by_forks(std::move(work))) {}

  void wait() override {
    check_not_forked(home_, rank_, "a collective");
    work_->wait();
  }
  bool waits_patiently() const override { return work_->waits_patiently(); }
  void wait_patiently() override {
    check_not_forked(home_, rank_, "a collective");
    work_->wait_patiently();
  }
  void give_up() override { work_->give_up(); }

 private:
  HomeProcess home_;
  int rank_;
  std::shared_ptr<Work> work_;
};

using Gloo = c10::intrusive_ptr<c10d::ProcessGroupGloo>;
using GlooOptions = c10::intrusive_ptr<c10d::ProcessGroupGloo::Options>;

// Connects the ranks of a group. `store`: the part of the job's store that the group uses.
Gloo connect_group(const StorePointer& store, int rank, int world_size, const GlooOptions& options,
                   const Deadline& deadline) {
  const NoBrokenPipes no_signal;
  return c10::make_intrusive<c10d::ProcessGroupGloo>(store->part("gloo")->for_c10d(deadline), rank,
                                                     world_size, options);
}

// A send, which is over when it has started. If its receiver does not agree with it, wait() may throw that.
class GlooSend : public Work {
 public:
  explicit GlooSend(std::shared_ptr<GlooMessages> messages) : messages_(std::move(messages)) {}
  void wait() override { messages_->check(); }

 private:
  std::shared_ptr<GlooMessages> messages_;
};

class GlooCommunicator : public Communicator {
 public:
  /// `ranks`: those of `group`; their name is empty if they are all ranks of the job.
  GlooCommunicator(Gloo group, RankGroup ranks, const StorePointer& store,
                   std::shared_ptr<FailureNotes> failures, std::shared_ptr<FailureWatch> announcements,
                   std::chrono::milliseconds timeout)
      : Communicator(group->getRank(), group->getSize(), timeout), store_(store) {
    const int own = ranks.ranks[static_cast<size_t>(group->getRank())];
    auto order = kept_by_forks(std::make_shared<OrderWatch>(store, group->getRank(), ranks.ranks));
    links_ = std::shared_ptr<GlooLinks>(new GlooLinks{.group = std::move(group),
                                                      .ranks = ranks.ranks,
                                                      .timeout = timeout,
                                                      .wait_board = WaitBoard(store, own),
                                                      .order = std::move(order),
                                                      .failures = std::move(failures),
                                                      .announcements = std::move(announcements)});
    messages_ = kept_by_forks(std::make_shared<GlooMessages>(links_));
    if (!ranks.name.empty()) set_group(std::move(ranks));
  }

  void announce_failure(const std::string& error) noexcept override {
    links_->announcements->announce(error);
  }

  std::string announced_failure() noexcept override { return links_->announcements->find(); }
  void note_failure(const std::string& error) noexcept override {
    links_->failures->post(rank_in_job(rank()), error);
  }

  std::unique_ptr<Notices> open_notices() override { return make_notices(store_, boards_++); }
  int64_t scratch_bytes() const override { return links_->scratch.bytes(); }

 private:
  std::unique_ptr<Work> start(CollectiveCall call) override {
    const int tag = tag_of(call);
    return std::make_unique<WorkOfThisProcess>(std::make_shared<GlooWork>(links_, std::move(call), tag),
                                               rank_in_job(rank()));
  }

  std::unique_ptr<Work> start_message(MessageCall call) override {
    std::shared_ptr<Work> work;
    if (call.is_send) {
      messages_->send(call);
      work = std::make_shared<GlooSend>(messages_);
    } else {
      work = messages_->receive(std::move(call));
    }
    return std::make_unique<WorkOfThisProcess>(std::move(work), rank_in_job(rank()));
  }

  // A tag contains the number of the collective, its kind and a hash. The number has 9 bits, because it must
  // differ only between collectives of one kind that are in flight. The hash covers the sizes and labels of
  // all collectives of this kind so far. So ranks that are out of step do not receive each other's messages,
  // and report an error at their deadline. If different histories have the same 19 bits of hash by chance,
  // the hashes at the next collective almost certainly differ.
  int tag_of(const CollectiveCall& call) {
    const auto kind = static_cast<size_t>(call.kind);
    const int number = number_[kind] = (number_[kind] + 1) & 0x1ff;
    uint64_t& history = history_[kind];
    history = fnv1a(fnv1a(history, static_cast<uint64_t>(call.input.numel())), call.label);
    return number << 22 | static_cast<int>(kind) << 19 |
           static_cast<int>(history * 0x9e3779b97f4a7c15ULL >> 45);
  }

  // A group has connections of its own, so that the messages of two groups cannot be taken for each other.
  // Its part of the store has a name that no other group of the job has.
  std::shared_ptr<Communicator> make_part(const std::vector<RankGroup>& groups, size_t own,
                                          RankGroup group) override {
    const std::string name = "group" + std::to_string(splits_++) + "-" + std::to_string(own);
    links_->failures->open();
    const std::vector<int>& ranks = groups[own].ranks;
    if (ranks.size() == 1)
      return make_lone_communicator(std::move(group), timeout(),
                                    [announcements = links_->announcements](const std::string& error) {
                                      announcements->announce(error);
                                    });
    const auto place = static_cast<int>(std::ranges::find(ranks, rank()) - ranks.begin());
    const StorePointer part = store_->part(name);
    const Deadline deadline(timeout());
    auto options = c10d::ProcessGroupGloo::Options::create(timeout());
    options->threads = 1;
    options->devices = links_->group->getOptions()->devices;
    try {
      Gloo connected = connect_group(part, place, static_cast<int>(ranks.size()), options, deadline);
      return std::make_shared<GlooCommunicator>(std::move(connected), std::move(group), part,
                                                links_->failures, links_->announcements, timeout());
    } catch (const std::exception& error) {
      throw CommError("rank " + std::to_string(rank_in_job(rank())) + " could not connect to the " +
                      describe(group) + ": " + first_line(error.what()));
    }
  }

  std::shared_ptr<GlooLinks> links_;
  std::shared_ptr<GlooMessages> messages_;
  StorePointer store_;
  int boards_ = 0;
  int splits_ = 0;
  std::array<int, kCollectiveKinds> number_{};
  std::array<uint64_t, kCollectiveKinds> history_{};
};

// Returns the address by which other hosts reach this rank. All ranks must call this, because it compares the
// routes of all ranks to MASTER_ADDR.
std::string address_for_other_hosts(const Environment& environment, const JobStore& store,
                                    const Deadline& deadline) {
  const Route own = route_to(environment.master_addr);
  std::vector<Route> routes;
  for (const std::string& word : exchange_words(store, "route", environment.rank, environment.world_size,
                                                own.local + " " + own.remote, deadline)) {
    const size_t space = word.find(' ');
    routes.push_back({word.substr(0, space), word.substr(space + 1)});
  }
  return reachable_address(routes, environment.rank);
}

std::shared_ptr<::gloo::transport::Device> choose_device(const std::string& address) {
  const NoBrokenPipes no_signal;  // in Gloo's thread, which starts here
  if (const char* interface = std::getenv("GLOO_SOCKET_IFNAME")) {
    return c10d::ProcessGroupGloo::createDeviceForInterface(interface);
  }
  return c10d::ProcessGroupGloo::createDeviceForHostname(address);
}

}  // namespace

std::shared_ptr<Communicator> make_gloo_communicator(const Environment& environment, RankGroup ranks,
                                                     const StorePointer& store, const Deadline& deadline) {
  auto options = c10d::ProcessGroupGloo::Options::create(deadline.remaining());
  options->threads = 1;
  const std::string address =
      environment.one_host ? environment.master_addr : address_for_other_hosts(environment, *store, deadline);
  const StorePointer own =
      ranks.name.empty() ? store : store->part("of rank " + std::to_string(ranks.ranks[0]));
  const auto place = std::ranges::find(ranks.ranks, environment.rank) - ranks.ranks.begin();
  try {
    options->devices.push_back(choose_device(address));
    Gloo group =
        connect_group(own, static_cast<int>(place), static_cast<int>(ranks.ranks.size()), options, deadline);
    const StorePointer failures = store->part("failures");
    auto notes = std::make_shared<FailureNotes>(failures);
    if (!ranks.name.empty()) notes->open();
    return std::make_shared<GlooCommunicator>(
        std::move(group), std::move(ranks), own, std::move(notes),
        kept_by_forks(std::make_shared<FailureWatch>(failures, environment.rank, environment.world_size)),
        environment.timeout);
  } catch (const std::exception& error) {
    throw CommError("rank " + std::to_string(environment.rank) + " could not connect to the other ranks: " +
                    first_line(error.what()) + " (GLOO_SOCKET_IFNAME names the network interface to use)");
  }
}

std::shared_ptr<Communicator> make_gloo_communicator(const Environment& environment,
                                                     const StorePointer& store, const Deadline& deadline) {
  RankGroup all;
  for (int rank = 0; rank < environment.world_size; ++rank) all.ranks.push_back(rank);
  return make_gloo_communicator(environment, std::move(all), store, deadline);
}

}  // namespace zerorun
