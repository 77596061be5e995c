#include "comm/communicator.h"

#include <ATen/ops/zeros.h>

#include <utility>

#include "base/error.h"

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

Communicator::Communicator(int rank, int world_size, std::chrono::milliseconds timeout, Device& device)
    : rank_(rank),
      world_size_(world_size),
      timeout_(timeout),
      device_(&device),
      is_first_on_host_(rank == 0) {
  ZR_CHECK(world_size >= 1 && rank >= 0 && rank < world_size,
           "rank " + std::to_string(rank) + " of " + std::to_string(world_size));
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
  return count_and_start({Collective::all_reduce, tensor, tensor, 0, std::move(label), {}});
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

std::unique_ptr<Work> Communicator::count_and_start(CollectiveCall call) {
  const c10::Device location = call.input.device();
  ZR_CHECK(call.input.is_contiguous() && call.output.is_contiguous() && call.output.device() == location &&
               (location == device_->location() || location.is_cpu()),
           call.label);
  if (world_size_ > 1) check_not_forked(home_, rank_, describe(call));
  const std::lock_guard lock(issue_);
  volume_.add(call, rank_, world_size_);
  return start(std::move(call));
}

}  // namespace zerorun
