#include "plan/imagined_ranks.h"

#include <ATen/ops/empty.h>

#include <algorithm>
#include <utility>

#include "base/error.h"
#include "comm/notices.h"
#include "device/streams.h"
#include "plan/meta_memory.h"

namespace zerorun {
namespace {

constexpr int64_t kMebibyte = int64_t{1} << 20;

class ImaginedStreams : public Streams {
 public:
  explicit ImaginedStreams(bool asynchronous) : asynchronous_(asynchronous) {}
  bool asynchronous() const override { return asynchronous_; }

 private:
  bool asynchronous_;
};

class ImaginedDevice : public Device {
 public:
  explicit ImaginedDevice(bool on_gpu) : on_gpu_(on_gpu), streams_(on_gpu) {}

  c10::Device location() const override { return c10::kMeta; }
  Streams& streams() override { return streams_; }
  Device& host() override { return *this; }
  // Of cuda/cuda_device.h; the library that has it is loaded only where there is a GPU.
  int64_t alignment() const override { return on_gpu_ ? 256 : cpu_device().alignment(); }
  int64_t bucket_bytes(int world_size) const override {
    if (!on_gpu_ || world_size == 1) return cpu_device().bucket_bytes(world_size);
    return std::max(256 * kMebibyte, 4 * kMebibyte * world_size);
  }
  at::Tensor allocate(int64_t numel, at::ScalarType dtype) override {
    const bool has_values = dtype == at::kFloat || dtype == at::kBFloat16 || dtype == at::kHalf;
    if (!has_values) return cpu_device().allocate(numel, dtype);
    const UncountedMetaMemory counted_by_engine;
    return at::empty({numel}, at::dtype(dtype).device(at::kMeta));
  }
  at::Tensor allocate_on_stream(int64_t numel, at::ScalarType dtype) override {
    return allocate(numel, dtype);
  }
  at::Tensor allocate_on_host(int64_t numel, at::ScalarType dtype) override { return allocate(numel, dtype); }

  void zero(const at::Tensor& values) override {
    if (!values.is_meta()) cpu_device().zero(values);
  }
  void copy(const at::Tensor& to, const at::Tensor& from) override {
    if (!to.is_meta()) cpu_device().copy(to, from);
  }
  void copy_scaled(const at::Tensor& /*to*/, const at::Tensor& /*from*/, float /*factor*/,
                   const FiniteCheck& /*finite_check*/) override {}
  void add_scaled(const at::Tensor& /*to*/, const at::Tensor& /*from*/, float /*factor*/,
                  const FiniteCheck& /*finite_check*/) override {}
  void copy_scaled(const at::Tensor& /*to*/, const at::Tensor& /*from*/, float /*factor*/) override {}
  void add_scaled(const at::Tensor& /*to*/, const at::Tensor& /*from*/, float /*factor*/) override {}
  void add_squares(const at::Tensor& /*tally*/, const at::Tensor& /*values*/, int64_t /*number*/,
                   double /*weight*/) override {}
  void publish(const at::Tensor& exchange, const at::Tensor& tally, int rank, int ranks) override {
    cpu_device().publish(exchange, tally, rank, ranks);
  }
  void decide(const at::Tensor& exchange, int ranks, const StepRule& rule) override {
    cpu_device().decide(exchange, ranks, rule);
  }
  void update(const UpdateRule& /*rule*/, const UpdateTensors& /*tensors*/,
              const at::Tensor& /*facts*/) override {}
  void follow_written(const at::Tensor& /*master*/, const at::Tensor& /*values*/) override {}

 private:
  bool on_gpu_;
  ImaginedStreams streams_;
};

class DoneWork : public Work {
 public:
  void wait() override {}
};

// What the ranks send each other of real numbers, if all do as this one.
void exchange(const CollectiveCall& call, int rank, int world_size) {
  at::Tensor output = call.output;
  const int64_t numel = call.input.numel();
  switch (call.kind) {
    case Collective::all_reduce:
      output.mul_(world_size);
      break;
    case Collective::reduce_scatter:
      output.copy_(call.input.narrow(0, rank * output.numel(), output.numel()).mul(world_size));
      break;
    case Collective::all_gather: {
      const at::Tensor own = call.input.clone();
      for (int other = 0; other < world_size; ++other) output.narrow(0, other * numel, numel).copy_(own);
      break;
    }
    case Collective::broadcast:
    case Collective::barrier:
      break;
  }
}

}  // namespace

std::unique_ptr<Device> make_imagined_device(bool on_gpu) {
  return std::make_unique<ImaginedDevice>(on_gpu);
}

ImaginedCommunicator::ImaginedCommunicator(const ImaginedRanks& ranks, Device& device)
    : Communicator(ranks.rank, ranks.world_size, std::chrono::minutes(10), device),
      shares_memory_(ranks.shares_memory),
      ranks_on_host_(ranks.ranks_on_host > 0 ? ranks.ranks_on_host : ranks.world_size),
      mail_(ranks.mail) {}

at::Tensor ImaginedCommunicator::allocate_shared(int64_t numel, at::ScalarType dtype) {
  return shares_memory_ ? allocate(numel, dtype) : at::Tensor();
}

std::unique_ptr<Notices> ImaginedCommunicator::open_notices() {
  return make_notices(std::make_shared<NoticesInMemory>(), boards_++);
}

std::unique_ptr<Work> ImaginedCommunicator::start(CollectiveCall call) {
  if (call.input.is_meta()) {
    Volume sent;
    sent.add(call, rank(), world_size());
    const double elements = sent.elements(call.kind);
    const double bytes = elements * static_cast<double>(call.input.element_size());
    elements_->at(static_cast<size_t>(call.kind)) += elements;
    bytes_->at(static_cast<size_t>(call.kind)) += bytes;
    int here = 0;
    for (int other = 0; other < world_size(); ++other) here += is_on_own_host(other) ? 1 : 0;
    if (here == world_size()) return std::make_unique<DoneWork>();
    // Each rank has as many bytes for each other.
    const double across = bytes * (world_size() - here) / (world_size() - 1);
    across_->flat += across;
    across_->on_levels += across / here;
  } else {
    exchange(call, rank(), world_size());
  }
  return std::make_unique<DoneWork>();
}

bool ImaginedCommunicator::is_on_own_host(int other) const {
  return rank_in_job(other) / ranks_on_host_ == rank_in_job(rank()) / ranks_on_host_;
}

std::unique_ptr<Work> ImaginedCommunicator::start_message(MessageCall call) {
  if (call.tensor.is_meta()) {
    if (!call.is_send) return std::make_unique<DoneWork>();
    const auto bytes = static_cast<double>(call.bytes());
    message_bytes_ += bytes;
    if (!is_on_own_host(call.receiver)) {
      across_->flat += bytes;
      // On two levels ranks of a host sum first, and only ranks with one place on their hosts exchange.
      const auto place = [&](int rank) { return rank_in_job(rank) % ranks_on_host_; };
      if (place(call.receiver) == place(rank())) across_->on_levels += bytes;
    }
    return std::make_unique<DoneWork>();
  }
  ZR_CHECK(mail_, "a message that has values: " + call.label);
  std::deque<at::Tensor>& messages = (*mail_)[{rank_in_job(call.sender), rank_in_job(call.receiver)}];
  if (call.is_send) {
    messages.push_back(call.tensor.clone());
    return std::make_unique<DoneWork>();
  }
  ZR_CHECK(!messages.empty(), "a message of a rank that is planned later: " + call.label);
  call.tensor.copy_(messages.front());
  messages.pop_front();
  return std::make_unique<DoneWork>();
}

std::shared_ptr<Communicator> ImaginedCommunicator::make_part(const std::vector<RankGroup>& groups,
                                                              size_t own, RankGroup group) {
  const std::vector<int>& ranks = groups[own].ranks;
  auto part = std::make_shared<ImaginedCommunicator>(
      ImaginedRanks{.rank = static_cast<int>(std::ranges::find(ranks, rank()) - ranks.begin()),
                    .world_size = static_cast<int>(ranks.size()),
                    .on_gpu = false,
                    .shares_memory = shares_memory_,
                    .ranks_on_host = ranks_on_host_,
                    .mail = mail_},
      device());
  part->set_group(std::move(group));
  part->bytes_ = bytes_;
  part->elements_ = elements_;
  part->across_ = across_;
  return part;
}

}  // namespace zerorun
