#include "tests/support/recording_device.h"

#include <ATen/ops/from_blob.h>

#include <map>
#include <thread>
#include <utility>

#include "comm/notices.h"
#include "device/zeroed_memory.h"
#include "tests/support/forward_collective.h"

namespace zerorun::testing {
namespace {

struct RecordedEvent : Event::State {
  StreamChecker::Clock clock{};
};

class RecordingStreams : public Streams {
 public:
  explicit RecordingStreams(Recording& recording) : recording_(&recording) {}

  bool asynchronous() const override { return true; }
  StreamId current() const override { return current_; }
  void set_current(StreamId stream) override { current_ = stream; }
  StreamId of(Lane lane) const override { return 1 + static_cast<StreamId>(lane); }

  void record(Event& event, StreamId stream) override {
    if (!event.state) event.state = std::make_unique<RecordedEvent>();
    static_cast<RecordedEvent&>(*event.state).clock = recording_->checker.now(stream);
  }
  void wait(const Event& event, StreamId stream, Handover handover) override {
    if (!event.state || handover == recording_->dropped) return;
    ++recording_->waits[static_cast<size_t>(handover)];
    recording_->checker.wait(static_cast<const RecordedEvent&>(*event.state).clock, stream);
  }
  void await(const Event& event, std::chrono::milliseconds, const std::string& what) override {
    if (!event.state || std::this_thread::get_id() != owner_) return;  // reports only the rank thread's waits
    const std::string& dropped = recording_->dropped_on_host;
    if (!dropped.empty() && what.find(dropped) != std::string::npos) {
      ++recording_->dropped_host_waits;
      return;
    }
    ++recording_->host_waits;
    recording_->checker.wait_on_host(static_cast<const RecordedEvent&>(*event.state).clock);
  }
  void note_use(const at::Tensor& memory, bool written) override {
    use(memory, written, "an operator of the model");
  }

  void use(const at::Tensor& tensor, bool writes, const std::string& what) {
    if (!tensor.defined() || tensor.numel() == 0) return;
    recording_->checker.use(tensor.const_data_ptr(), tensor.nbytes(), current_, writes, what);
  }

 private:
  Recording* recording_;
  std::thread::id owner_ = std::this_thread::get_id();
  StreamId current_ = 0;  // no lock: a rank uses its device from one thread
};

// Runs each kernel on the CPU, after it has reported the tensors that the kernel reads and writes.
class RecordingKernels : public CpuDevice {
 public:
  void zero(const at::Tensor& values) override {
    uses({}, {values}, "zero");
    CpuDevice::zero(values);
  }
  void copy(const at::Tensor& to, const at::Tensor& from) override {
    uses({from}, {to}, "copy");
    CpuDevice::copy(to, from);
  }
  // Kernels update the slots of `tally` atomically, so this use needs no order and counts as a read.
  void copy_scaled(const at::Tensor& to, const at::Tensor& from, float factor,
                   const FiniteCheck& finite_check) override {
    uses({from, finite_check.tally}, {to}, "copy_scaled");
    CpuDevice::copy_scaled(to, from, factor, finite_check);
  }
  void add_scaled(const at::Tensor& to, const at::Tensor& from, float factor,
                  const FiniteCheck& finite_check) override {
    uses({from, finite_check.tally}, {to}, "add_scaled");
    CpuDevice::add_scaled(to, from, factor, finite_check);
  }
  void copy_scaled(const at::Tensor& to, const at::Tensor& from, float factor) override {
    uses({from}, {to}, "copy_scaled");
    CpuDevice::copy_scaled(to, from, factor);
  }
  void add_scaled(const at::Tensor& to, const at::Tensor& from, float factor) override {
    uses({from}, {to}, "add_scaled");
    CpuDevice::add_scaled(to, from, factor);
  }
  void add_squares(const at::Tensor& tally, const at::Tensor& values, int64_t number,
                   double weight) override {
    uses({values}, {tally}, "add_squares");
    CpuDevice::add_squares(tally, values, number, weight);
  }
  void publish(const at::Tensor& exchange, const at::Tensor& tally, int rank, int ranks) override {
    uses({}, {exchange, tally}, "publish");
    CpuDevice::publish(exchange, tally, rank, ranks);
  }
  void decide(const at::Tensor& exchange, int ranks, const StepRule& rule) override {
    uses({}, {exchange}, "decide");
    CpuDevice::decide(exchange, ranks, rule);
  }
  void update(const UpdateRule& rule, const UpdateTensors& tensors, const at::Tensor& facts) override {
    uses({tensors.gradient, facts},
         {tensors.values, tensors.first, tensors.second, tensors.third, tensors.rounded}, "update");
    CpuDevice::update(rule, tensors, facts);
  }
  void follow_written(const at::Tensor& master, const at::Tensor& values) override {
    uses({values}, {master}, "follow_written");
    CpuDevice::follow_written(master, values);
  }

 private:
  virtual void note_use(const at::Tensor& tensor, bool writes, const std::string& what) = 0;

  void uses(std::initializer_list<at::Tensor> read, std::initializer_list<at::Tensor> written,
            const std::string& what) {
    for (const at::Tensor& tensor : read) note_use(tensor, false, what);
    for (const at::Tensor& tensor : written) note_use(tensor, true, what);
  }
};

// The device that performs offloaded updates in host memory. The checker receives its uses as uses by the
// host.
class RecordingHost : public RecordingKernels {
 public:
  explicit RecordingHost(Recording& recording) : recording_(&recording) {}

 private:
  void note_use(const at::Tensor& tensor, bool writes, const std::string& what) override {
    if (!tensor.defined() || tensor.numel() == 0) return;
    recording_->checker.use_by_host(tensor.const_data_ptr(), tensor.nbytes(), writes, what);
  }

  Recording* recording_;
};

class RecordingDevice : public RecordingKernels {
 public:
  explicit RecordingDevice(Recording& recording)
      : recording_(&recording), streams_(recording), host_(recording) {}

  Streams& streams() override { return streams_; }
  Device& host() override { return host_; }
  RecordingStreams& recording_streams() { return streams_; }

  at::Tensor allocate(int64_t numel, at::ScalarType dtype) override {
    return lent(make(numel, dtype, streams_.current()), numel, dtype, [](const at::Tensor&) {});
  }

  at::Tensor allocate_on_host(int64_t numel, at::ScalarType dtype) override {
    recording_->host_bytes += numel * static_cast<int64_t>(c10::elementSize(dtype));
    return make(numel, dtype, StreamChecker::kHost);
  }

  void record_stream(const at::Tensor& memory, StreamId stream) override {
    StreamChecker::join(recorded_[memory.const_data_ptr()], recording_->checker.now(stream));
  }

  std::shared_ptr<void> pin(void* memory, size_t bytes) override {
    recording_->pinned_bytes += static_cast<int64_t>(bytes);
    return {memory, [bytes, recording = recording_](void*) {
              recording->pinned_bytes -= static_cast<int64_t>(bytes);
            }};
  }

  int64_t bucket_bytes(int) const override { return recording_->bucket_bytes; }

  // Like LibTorch's expandable segments, freed memory waits for the stream that allocated it and for recorded
  // streams only.
  void empty_cache() override {
    for (auto& [key, free] : *freed_) {
      for (const at::Tensor& memory : free) {
        StreamChecker::Clock waited = recording_->checker.now(key.first);
        StreamChecker::join(waited, recorded_[memory.const_data_ptr()]);
        recording_->checker.unmap_memory(memory.const_data_ptr(), waited);
      }
    }
    freed_->clear();
    recorded_.clear();
    ++recording_->emptied;
  }

  // Like LibTorch's caching allocator, this reuses freed memory at once, on the stream that allocated it.
  at::Tensor allocate_on_stream(int64_t numel, at::ScalarType dtype) override {
    const auto key = std::pair(streams_.current(), numel * static_cast<int64_t>(c10::elementSize(dtype)));
    std::vector<at::Tensor>& free = (*freed_)[key];
    if (free.empty()) free.push_back(make(key.second, at::kByte, streams_.current()));
    at::Tensor memory = free.back();
    free.pop_back();
    return lent(memory, numel, dtype,
                [key, freed = freed_](const at::Tensor& memory) { (*freed)[key].push_back(memory); });
  }

 private:
  // Allocates memory that `stream` fills with zeros.
  at::Tensor make(int64_t numel, at::ScalarType dtype, StreamId stream) {
    const at::Tensor memory = zeroed_memory(std::max<int64_t>(numel, 1), dtype);
    void* begin = memory.mutable_data_ptr();
    recording_->checker.add_memory(begin, memory.nbytes(), stream);
    ++recording_->allocations;
    auto free = [memory, recording = recording_](void* gone) {
      if (recording->checker.knows(gone)) recording->checker.remove_memory(gone);
      ++recording->frees;
    };
    return at::from_blob(begin, {numel}, std::move(free), at::TensorOptions().dtype(dtype));
  }

  // A tensor over `memory`. When its last reference is destroyed, it calls `give_back`.
  template <typename GiveBack>
  at::Tensor lent(const at::Tensor& memory, int64_t numel, at::ScalarType dtype, GiveBack give_back) {
    const int64_t bytes = numel * static_cast<int64_t>(c10::elementSize(dtype));
    recording_->live_bytes += bytes;
    auto end = [memory, bytes, recording = recording_, give_back](void*) {
      recording->live_bytes -= bytes;
      give_back(memory);
    };
    return at::from_blob(memory.mutable_data_ptr(), {numel}, std::move(end),
                         at::TensorOptions().dtype(dtype));
  }

  void note_use(const at::Tensor& tensor, bool writes, const std::string& what) override {
    streams_.use(tensor, writes, what);
  }

  using Freed = std::map<std::pair<StreamId, int64_t>, std::vector<at::Tensor>>;

  Recording* recording_;
  RecordingStreams streams_;
  RecordingHost host_;
  std::map<const void*, StreamChecker::Clock> recorded_;      // by address: the work of record_stream()
  std::shared_ptr<Freed> freed_ = std::make_shared<Freed>();  // by stream and size in bytes
};

// A non-owning tensor over the same memory. Other rank-threads hold references to the tensors of a collective
// for a while; with non-owning tensors only the owner's thread can free the memory.
at::Tensor borrowed(const at::Tensor& tensor) {
  return at::from_blob(tensor.mutable_data_ptr(), tensor.sizes(), tensor.options());
}

// A receive, which writes to its tensor on the stream that is current in wait(), as on a GPU.
class RecordedReceive : public Work {
 public:
  RecordedReceive(at::Tensor tensor, std::string what, std::unique_ptr<Work> work, RecordingStreams& streams)
      : tensor_(std::move(tensor)), what_(std::move(what)), work_(std::move(work)), streams_(streams) {}

  void wait() override {
    work_->wait();
    streams_.use(tensor_, true, what_);
  }

 private:
  at::Tensor tensor_;
  std::string what_;
  std::unique_ptr<Work> work_;
  RecordingStreams& streams_;
};

// A communicator whose collectives are reported on the current stream, as on a GPU. They are complete when
// start() returns. A send is reported as the copy that it makes on the current stream. Its groups report to
// the same device.
class RecordingCommunicator : public Communicator {
 public:
  RecordingCommunicator(std::shared_ptr<Communicator> inner, std::shared_ptr<RecordingDevice> device,
                        Recording& recording)
      : Communicator(inner->rank(), inner->world_size(), inner->timeout(), *device),
        inner_(std::move(inner)),
        device_(std::move(device)),
        recording_(&recording) {}

  std::unique_ptr<Notices> open_notices() override { return inner_->open_notices(); }
  at::Tensor allocate(int64_t numel, at::ScalarType dtype) override {
    recording_->registered_bytes += numel * static_cast<int64_t>(c10::elementSize(dtype));
    return Communicator::allocate(numel, dtype);
  }

 private:
  void open_group() override { grouping_ = true; }
  void close_group(bool) override {
    grouping_ = false;
    for (CollectiveCall& call : std::exchange(held_, {})) start(std::move(call));
  }

  std::unique_ptr<Work> start(CollectiveCall call) override {
    if (grouping_) {
      held_.push_back(std::move(call));
      return std::make_unique<Done>();
    }
    const std::string what = describe(call);
    device_->recording_streams().use(call.input, false, what);
    device_->recording_streams().use(call.output, true, what);
    call.input = borrowed(call.input);
    call.output = borrowed(call.output);
    forward(*inner_, call)->wait();
    return std::make_unique<Done>();
  }

  std::unique_ptr<Work> start_message(MessageCall call) override {
    const std::string what = describe(call, group_of_ranks().ranks);
    if (call.is_send) {
      device_->recording_streams().use(call.tensor, false, what);
      return forward(*inner_, call, borrowed(call.tensor));
    }
    auto work = forward(*inner_, call, borrowed(call.tensor));
    return std::make_unique<RecordedReceive>(call.tensor, what, std::move(work),
                                             device_->recording_streams());
  }

  std::shared_ptr<Communicator> make_part(const std::vector<RankGroup>& groups, size_t /*own*/,
                                          RankGroup group) override {
    const auto part = std::make_shared<RecordingCommunicator>(inner_->split(groups), device_, *recording_);
    part->set_group(std::move(group));
    return part;
  }

  std::shared_ptr<Communicator> inner_;
  std::shared_ptr<RecordingDevice> device_;
  Recording* recording_;
  bool grouping_ = false;
  std::vector<CollectiveCall> held_;
};

}  // namespace

std::shared_ptr<Device> make_recording_device(Recording& recording) {
  return std::make_shared<RecordingDevice>(recording);
}

std::shared_ptr<Communicator> make_recording_communicator(std::shared_ptr<Communicator> inner,
                                                          Recording& recording) {
  return std::make_shared<RecordingCommunicator>(std::move(inner),
                                                 std::make_shared<RecordingDevice>(recording), recording);
}

}  // namespace zerorun::testing
