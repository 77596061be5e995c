#include "comm/communicator.h"

#include <ATen/ops/zeros.h>

#include <algorithm>
#include <numeric>
#include <utility>

#include "base/error.h"
#include "base/fnv1a.h"
#include "comm/communication_log.h"
#include "comm/deadline.h"
#include "comm/recorded_work.h"

namespace zerorun {

const char* name_of(Collective collective) {
  switch (collective) {
    case Collective::reduce_scatter:
      return "reduce_scatter";
    case Collective::all_gather:
      return "all_gather";
    case Collective::all_reduce:
      return "all_reduce";
    case Collective::broadcast:
      return "broadcast";
    case Collective::barrier:
      return "barrier";
  }
  return "?";
}

std::string describe(const CollectiveCall& call) {
  return std::string(name_of(call.kind)) + " of " + call.label +
         (call.reason.empty() ? "" : " " + call.reason);
}

std::string describe_disagreement(int rank, const std::string& mine, int other_rank,
                                  const std::string& theirs) {
  return "ranks disagree on the next collective: rank " + std::to_string(rank) + " is in " + mine +
         ", rank " + std::to_string(other_rank) + " in " + theirs;
}

std::string describe(const RankGroup& group) {
  constexpr size_t kMost = 8;
  const std::vector<int>& ranks = group.ranks;
  if (ranks.size() <= kMost) return group.name + " (" + name_ranks(ranks) + ")";
  return group.name + " (" + std::to_string(ranks.size()) + " ranks, " + std::to_string(ranks.front()) +
         " to " + std::to_string(ranks.back()) + ")";
}

void check_not_forked(const HomeProcess& home, int rank, const std::string& what) {
  if (home.is_current()) return;
  throw CommError(what + ": this process was forked from rank " + std::to_string(rank) +
                  " and is no rank itself; use the engine in the process that made it");
}

void Volume::add(const CollectiveCall& call, int rank, int world_size) {
  const double others = world_size - 1;
  double sent = 0;
  switch (call.kind) {
    case Collective::reduce_scatter:
      sent = others / world_size * static_cast<double>(call.input.numel());
      break;
    case Collective::all_gather:
      sent = others / world_size * static_cast<double>(call.output.numel());
      break;
    case Collective::all_reduce:
      sent = others * static_cast<double>(call.input.numel());
      break;
    case Collective::broadcast:
      sent = rank == call.root ? others * static_cast<double>(call.input.numel()) : 0;
      break;
    case Collective::barrier:
      break;
  }
  elements_[static_cast<size_t>(call.kind)] += sent;
}

void Volume::add(const MessageCall& call) {
  if (call.is_send) sent_ += static_cast<double>(call.tensor.numel());
}

Communicator::Communicator(int rank, int world_size, std::chrono::milliseconds timeout, Device& device)
    : rank_(rank),
      world_size_(world_size),
      timeout_(timeout),
      device_(&device),
      is_first_on_host_(rank == 0),
      sent_(static_cast<size_t>(std::max(world_size, 0))),
      received_(sent_) {
  ZR_CHECK(world_size >= 1 && rank >= 0 && rank < world_size,
           "rank " + std::to_string(rank) + " of " + std::to_string(world_size));
  group_.ranks.resize(static_cast<size_t>(world_size));
  std::iota(group_.ranks.begin(), group_.ranks.end(), 0);
}

void Communicator::set_group(RankGroup group) {
  group_ = std::move(group);
  label_suffix_ = " in the " + describe(group_);
}

namespace {

// Returns why `groups` is not a partition of `world_size` ranks; empty if it is one.
std::string fault_of(const std::vector<RankGroup>& groups, int world_size) {
  std::vector<int> seen(static_cast<size_t>(world_size));
  for (const RankGroup& group : groups) {
    if (group.name.empty()) return "a group of " + name_ranks(group.ranks) + " has no name";
    if (group.ranks.empty() || !std::ranges::is_sorted(group.ranks)) {
      return describe(group) + ": a group has one rank or more, in ascending order";
    }
    for (const int rank : group.ranks) {
      if (rank < 0 || rank >= world_size) {
        return describe(group) + ": there is no rank " + std::to_string(rank) + " among " +
               std::to_string(world_size);
      }
      if (seen[static_cast<size_t>(rank)]++ > 0)
        return describe(group) + ": rank " + std::to_string(rank) + " is in two groups";
    }
  }
  const auto missing = std::ranges::find(seen, 0);
  return missing == seen.end() ? "" : "rank " + std::to_string(missing - seen.begin()) + " is in no group";
}

}  // namespace

std::shared_ptr<Communicator> Communicator::split(const std::vector<RankGroup>& groups) {
  if (const std::string fault = fault_of(groups, world_size_); !fault.empty()) {
    throw UserError("the ranks cannot be split into groups: " + fault);
  }
  const auto own = std::ranges::find_if(
      groups, [&](const RankGroup& group) { return std::ranges::binary_search(group.ranks, rank_); });
  std::string words;
  for (const RankGroup& group : groups) words += " " + group.name + " " + name_ranks(group.ranks);
  // The number stands in front, since a transport may show only the start of a label.
  const std::string label = "splitting the ranks into " + std::to_string(groups.size()) + " groups (" +
                            std::to_string(fnv1a(kFnv1aStart, words) % 1'000'000) + "):" + words;
  barrier(label)->wait();  // ranks that split differently are told so
  RankGroup group = *own;
  for (int& rank : group.ranks) rank = rank_in_job(rank);
  auto part = make_part(groups, static_cast<size_t>(own - groups.begin()), std::move(group));
  part->set_sum_group(sum_group_);
  return kept_by_forks(std::move(part));
}

std::vector<int> Communicator::groups_of_sums(int ranks) const {
  ZR_CHECK(ranks >= 0, "a group of " + std::to_string(ranks) + " ranks");
  std::vector<int> sizes;
  int last = -1;
  for (const int rank : group_.ranks) {
    const int group = ranks > 0 ? rank / ranks : 0;
    if (group != last) sizes.push_back(0);
    last = group;
    ++sizes.back();
  }
  const bool is_plain = sizes.size() == 1 || sizes.size() == group_.ranks.size();
  return is_plain ? std::vector<int>() : sizes;
}

void Communicator::set_sum_group(int ranks) {
  std::vector<int> sizes = groups_of_sums(ranks);
  const std::lock_guard lock(issue_);
  sum_group_ = ranks;
  sum_groups_ = sizes.empty() ? nullptr : std::make_shared<const std::vector<int>>(std::move(sizes));
}

std::shared_ptr<Communicator> Communicator::make_part(const std::vector<RankGroup>& /*groups*/,
                                                      size_t /*own*/, RankGroup group) {
  throw Error("this communicator cannot be split: " + describe(group));
}

at::Tensor Communicator::allocate(int64_t numel, at::ScalarType dtype) {
  return device_->allocate(numel, dtype);
}

at::Tensor Communicator::allocate_shared(int64_t /*numel*/, at::ScalarType /*dtype*/) {
  return {};
}

at::Tensor Communicator::make_own(const at::Tensor& shared) {
  return device_->allocate(shared.numel(), shared.scalar_type()).copy_(shared);
}

void Communicator::give_back_pages(const at::Tensor& part) {
  device_->zero(part);
}

std::unique_ptr<Work> Communicator::reduce_scatter(at::Tensor output, at::Tensor input, std::string label) {
  ZR_CHECK(input.numel() == output.numel() * world_size_ && input.scalar_type() == output.scalar_type(),
           label);
  return count_and_start(
      {Collective::reduce_scatter, std::move(output), std::move(input), 0, std::move(label), {}});
}

std::unique_ptr<Work> Communicator::all_gather(at::Tensor output, at::Tensor input, std::string label,
                                               std::string reason) {
  ZR_CHECK(output.numel() == input.numel() * world_size_ && input.scalar_type() == output.scalar_type(),
           label);
  return count_and_start(
      {Collective::all_gather, std::move(output), std::move(input), 0, std::move(label), std::move(reason)});
}

std::unique_ptr<Work> Communicator::all_reduce(at::Tensor tensor, std::string label) {
  if (world_size_ > 1 && tensor.is_cpu() && static_cast<int64_t>(tensor.nbytes()) >= kLargeSum &&
      tensor.numel() >= world_size_) {
    return all_reduce_in_two(tensor, label);
  }
  return count_and_start({Collective::all_reduce, tensor, tensor, 0, std::move(label), {}});
}

// The all-gather is started here and not in wait(), so that all ranks start their all-gathers in the same
// order, whatever they wait for first. The few elements that do not divide among the ranks are summed apart.
std::unique_ptr<Work> Communicator::all_reduce_in_two(const at::Tensor& tensor, const std::string& label) {
  const int64_t slice = tensor.numel() / world_size_;
  const int64_t whole = slice * world_size_;
  const at::Tensor flat = tensor.view({-1});
  const at::Tensor main = flat.narrow(0, 0, whole);
  const at::Tensor own = flat.narrow(0, rank_ * slice, slice);
  const std::string words = label + " (all_reduce)";
  std::unique_ptr<Work> rest;
  if (whole < tensor.numel()) rest = all_reduce(flat.narrow(0, whole, tensor.numel() - whole), label);
  reduce_scatter(own, main, words)->wait();
  if (rest) rest->wait();
  return all_gather(main, own, words);
}

std::unique_ptr<Work> Communicator::broadcast(at::Tensor tensor, int root, std::string label) {
  return count_and_start({Collective::broadcast, tensor, tensor, root, std::move(label), {}});
}

std::unique_ptr<Work> Communicator::barrier(std::string label) {
  at::Tensor nothing = at::zeros({1});
  return count_and_start({Collective::barrier, nothing, nothing, 0, std::move(label), {}});
}

Communicator::Group::Group(Communicator& communicator)
    : communicator_(communicator), lock_(communicator.issue_) {
  communicator.open_group();
}

void Communicator::Group::close() {
  open_ = false;
  communicator_.close_group(false);
}

// The group is still open here only if the body of group() has thrown an exception.
Communicator::Group::~Group() {
  if (open_) communicator_.close_group(true);
}

void Communicator::check_place(const at::Tensor& tensor, const std::string& label) const {
  const c10::Device location = tensor.device();
  ZR_CHECK(tensor.is_contiguous() && (location == device_->location() || location.is_cpu()), label);
}

// NCCL passes calls on to its control, which is of the same group.
void Communicator::add_suffix(std::string& label) const {
  if (!label.ends_with(label_suffix_)) label += label_suffix_;
}

std::unique_ptr<Work> Communicator::count_and_start(CollectiveCall call) {
  check_place(call.input, call.label);
  check_place(call.output, call.label);
  ZR_CHECK(call.output.device() == call.input.device(), call.label);
  add_suffix(call.label);
  if (world_size_ > 1) check_not_forked(home_, rank_in_job(rank_), describe(call));
  const std::lock_guard lock(issue_);
  call.sum_groups = sum_groups_;
  volume_.add(call, rank_, world_size_);
  if (timeline::is_on() && is_recorded_) {
    const TimelineTransfer transfer = start_of(call);
    return std::make_unique<RecordedWork>(transfer, log_and_start(std::move(call)));
  }
  return log_and_start(std::move(call));
}

std::unique_ptr<Work> Communicator::log_and_start(CollectiveCall call) {
  if (!log_ || !log_->records(name_of(call.kind))) return start(std::move(call));
  const auto bytes = static_cast<int64_t>(std::max(call.input.nbytes(), call.output.nbytes()));
  CommunicationLog::Call record{.kind = name_of(call.kind),
                                .bytes = call.kind == Collective::barrier ? 0 : bytes,
                                .ranks = world_size_,
                                .label = call.label + (call.reason.empty() ? "" : " " + call.reason)};
  const auto begin = std::chrono::steady_clock::now();
  return CommunicationLog::watch(log_, std::move(record), begin, start(std::move(call)));
}

std::unique_ptr<Work> Communicator::send(at::Tensor tensor, int receiver, std::string label) {
  return count_and_start(MessageCall{true, std::move(tensor), rank_, receiver, std::move(label), 0});
}

std::unique_ptr<Work> Communicator::receive(at::Tensor tensor, int sender, std::string label) {
  return count_and_start(MessageCall{false, std::move(tensor), sender, rank_, std::move(label), 0});
}

std::unique_ptr<Work> Communicator::count_and_start(MessageCall call) {
  add_suffix(call.label);
  const std::string what = (call.is_send ? "send of " : "receive of ") + call.label;
  const int other = call.other();
  if (other < 0 || other >= world_size_) {
    throw UserError(what + ": there is no rank " + std::to_string(other) + " among " +
                    std::to_string(world_size_));
  }
  if (other == rank_) {
    throw UserError(what + ": rank " + std::to_string(rank_in_job(rank_)) +
                    " is both sender and receiver; a message goes to another rank");
  }
  check_place(call.tensor, what);
  check_not_forked(home_, rank_in_job(rank_), what);
  const std::lock_guard lock(issue_);
  call.number = ++(call.is_send ? sent_ : received_)[static_cast<size_t>(other)];
  volume_.add(call);
  if (timeline::is_on() && is_recorded_) {
    const TimelineTransfer transfer(call.is_send ? TimelineName::send : TimelineName::receive,
                                    rank_in_job(other), call.bytes());
    return std::make_unique<RecordedWork>(transfer, log_and_start(std::move(call)));
  }
  return log_and_start(std::move(call));
}

std::unique_ptr<Work> Communicator::log_and_start(MessageCall call) {
  const std::string kind = call.is_send ? "send" : "receive";
  if (!log_ || !log_->records(kind)) return start_message(std::move(call));
  CommunicationLog::Call record{.kind = kind, .bytes = call.bytes(), .ranks = 2, .label = call.label};
  const auto begin = std::chrono::steady_clock::now();
  return CommunicationLog::watch(log_, std::move(record), begin, start_message(std::move(call)));
}

std::unique_ptr<Work> Communicator::start_message(MessageCall call) {
  throw Error("this communicator has no messages: " + describe(call, group_.ranks));
}

}  // namespace zerorun
