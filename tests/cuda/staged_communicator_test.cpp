// Tests StagedCommunicator itself on the recording device, with rank-threads.
#include "tests/support/staged_communicator.h"

#include <torch/torch.h>

#include <catch2/catch.hpp>

#include "comm/notices.h"
#include "tests/support/forward_collective.h"
#include "tests/support/rank_threads.h"
#include "tests/support/recording_device.h"

namespace zerorun::testing {
namespace {

// Reports to a StreamChecker what the ranks' collectives on the CPU read and write.
class HostUses : public Communicator {
 public:
  HostUses(std::shared_ptr<Communicator> inner, Recording& recording)
      : Communicator(inner->rank(), inner->world_size(), inner->timeout()),
        inner_(std::move(inner)),
        recording_(&recording) {}

  std::unique_ptr<Notices> open_notices() override { return inner_->open_notices(); }

 private:
  std::unique_ptr<Work> start(CollectiveCall call) override {
    const auto report = [&](const at::Tensor& tensor, bool writes) {
      recording_->checker.use_by_host(tensor.const_data_ptr(), tensor.nbytes(), writes, describe(call));
    };
    report(call.input, false);
    report(call.output, true);
    return forward(*inner_, call);
  }
  std::unique_ptr<Work> start_message(MessageCall call) override {
    recording_->checker.use_by_host(call.tensor.const_data_ptr(), call.tensor.nbytes(), !call.is_send,
                                    call.label);
    return forward(*inner_, call, call.tensor);
  }

  std::shared_ptr<Communicator> inner_;
  Recording* recording_;
};

using Body = std::function<void(Communicator&, Streams&)>;

void run_staged(std::vector<Recording>& recordings, const Body& body, std::function<void()> delay = {}) {
  run_ranks(static_cast<int>(recordings.size()), [&](std::shared_ptr<Communicator> inner) {
    Recording& recording = recordings.at(inner->rank());
    auto control = std::make_shared<HostUses>(std::move(inner), recording);
    const std::shared_ptr<Device> device = make_recording_device(recording);
    StagedCommunicator communicator(control, device, delay);
    body(communicator, device->streams());
  });
}

at::Tensor on_device(Communicator& communicator, const at::Tensor& values) {
  const at::Tensor tensor = communicator.device().allocate(values.numel(), values.scalar_type());
  communicator.device().copy(tensor, values);
  return tensor;
}

at::Tensor numbers(int rank, int64_t numel) {
  return (at::arange(numel, at::kDouble) * 0.37 + rank * 1.9).sin().to(at::kFloat);
}

// Each collective once for several sizes, on the current stream.
void all_kinds(Communicator& communicator, std::vector<at::Tensor>& results) {
  const int ranks = communicator.world_size();
  for (const int64_t slice : {0, 3, 1000, 10}) {
    const at::Tensor input = on_device(communicator, numbers(communicator.rank(), slice * ranks));
    const at::Tensor sum = communicator.device().allocate(slice, at::kFloat);
    communicator.reduce_scatter(sum, input, "sum")->wait();
    const at::Tensor whole = communicator.device().allocate(slice * ranks, at::kFloat);
    const at::Tensor own = whole.narrow(0, communicator.rank() * slice, slice);
    communicator.device().copy(own, sum);
    communicator.all_gather(whole, own, "whole")->wait();
    communicator.all_reduce(input, "all")->wait();
    const at::Tensor roots = on_device(communicator, numbers(communicator.rank(), slice));
    communicator.broadcast(roots, ranks - 1, "root")->wait();
    for (const at::Tensor& tensor : {sum, whole, input, roots}) results.push_back(tensor.clone());
  }
  communicator.barrier("end")->wait();
}

size_t count_violations(const std::vector<Recording>& recordings) {
  size_t count = 0;
  for (const Recording& recording : recordings) count += recording.checker.violations().size();
  return count;
}

}  // namespace

TEST_CASE("staged: every collective gives the bits of the CPU ranks'") {
  const int ranks = GENERATE(1, 2, 4);
  CAPTURE(ranks);
  std::vector<std::vector<at::Tensor>> expected(ranks);
  run_ranks(ranks, [&](std::shared_ptr<Communicator> inner) { all_kinds(*inner, expected[inner->rank()]); });
  std::vector<Recording> recordings(ranks);
  std::vector<std::vector<at::Tensor>> found(ranks);
  run_staged(recordings, [&](Communicator& staged, Streams&) { all_kinds(staged, found[staged.rank()]); });
  for (int rank = 0; rank < ranks; ++rank) {
    REQUIRE(found[rank].size() == 16);
    for (size_t i = 0; i < found[rank].size(); ++i) CHECK(torch::equal(found[rank][i], expected[rank][i]));
  }
  CHECK(count_violations(recordings) == 0);
}

TEST_CASE("staged: a collective runs on the caller's stream, and the host waits for its copy") {
  const std::string dropped = GENERATE("", "the copy to the host for");
  std::vector<Recording> recordings(2);
  for (Recording& recording : recordings) recording.dropped_on_host = dropped;
  run_staged(recordings, [](Communicator& staged, Streams& streams) {
    const at::Tensor tensor = on_device(staged, numbers(staged.rank(), 100));
    for (int round = 0; round < 3; ++round) {
      Event ready;
      streams.record(ready, streams.current());
      streams.wait(ready, streams.of(Lane::reduce), Handover::written);
      {
        const StreamScope scope(streams, Lane::reduce);
        staged.all_reduce(tensor, "sum")->wait();
      }
      Event summed;
      streams.record(summed, streams.of(Lane::reduce));
      streams.wait(summed, streams.current(), Handover::reduced);
      staged.device().zero(tensor);
    }
  });
  CHECK((count_violations(recordings) == 0) == dropped.empty());
}

TEST_CASE("staged: a stream that does not wait for a collective is noticed") {
  std::vector<Recording> recordings(2);
  run_staged(recordings, [](Communicator& staged, Streams& streams) {
    const at::Tensor tensor = on_device(staged, numbers(staged.rank(), 100));
    Event ready;
    streams.record(ready, streams.current());
    streams.wait(ready, streams.of(Lane::gather), Handover::updated);
    {
      const StreamScope scope(streams, Lane::gather);
      staged.broadcast(tensor, 0, "values")->wait();
    }
    staged.device().zero(tensor);
  });
  CHECK(count_violations(recordings) == 2);
}

TEST_CASE("staged: messages have the sender's values, and a send does not wait for its receiver") {
  std::vector<Recording> recordings(2);
  std::vector<at::Tensor> received(4);
  run_staged(recordings, [&](Communicator& staged, Streams&) {
    const int rank = staged.rank();
    for (int round = 0; round < 2; ++round) {
      const at::Tensor mine = on_device(staged, numbers(10 * round + rank, 100));
      staged.send(mine, 1 - rank, "values")->wait();
      staged.device().zero(mine);
    }
    for (int round = 0; round < 2; ++round) {
      const at::Tensor theirs = on_device(staged, numbers(0, 100));
      staged.receive(theirs, 1 - rank, "values")->wait();
      received[2 * rank + round] = theirs.clone();
    }
  });
  for (int rank = 0; rank < 2; ++rank) {
    for (int round = 0; round < 2; ++round)
      CHECK(torch::equal(received[2 * rank + round], numbers(10 * round + 1 - rank, 100)));
  }
  CHECK(count_violations(recordings) == 0);
}

TEST_CASE("staged: repeated collectives allocate nothing") {
  std::vector<Recording> recordings(2);
  std::vector<int64_t> growth(2);
  run_staged(recordings, [&](Communicator& staged, Streams&) {
    const at::Tensor sum = on_device(staged, numbers(staged.rank(), 50));
    const at::Tensor input = on_device(staged, numbers(staged.rank(), 100));
    const Recording& mine = recordings[staged.rank()];
    staged.reduce_scatter(sum, input, "first")->wait();
    const int64_t before = mine.allocations;
    for (int round = 0; round < 5; ++round) {
      staged.reduce_scatter(sum, input, "sum")->wait();
      staged.all_reduce(sum, "smaller")->wait();
    }
    growth[staged.rank()] = mine.allocations - before;
  });
  CHECK(growth == std::vector<int64_t>{0, 0});
}

TEST_CASE("staged: a group starts its collectives when it closes, and none if it is abandoned") {
  std::vector<Recording> recordings(2);
  std::vector<std::vector<float>> values(2);
  run_staged(recordings, [&](Communicator& staged, Streams&) {
    const at::Tensor tensor = on_device(staged, at::ones({4}));
    auto& seen = values[staged.rank()];
    const auto see = [&] { seen.push_back(tensor[0].item<float>()); };
    staged.as_one([&] {
      staged.all_reduce(tensor, "one")->wait();
      staged.all_reduce(tensor, "two")->wait();
      see();
    });
    see();
    try {
      staged.as_one([&] {
        staged.all_reduce(tensor, "three")->wait();
        throw std::runtime_error("abandoned");
      });
    } catch (const std::runtime_error&) {
      see();
    }
    staged.all_reduce(tensor, "four")->wait();
    see();
  });
  for (const auto& seen : values) CHECK(seen == std::vector<float>{1, 4, 4, 8});
}

TEST_CASE("staged: delays come on the collective's stream and on the compute stream") {
  std::vector<Recording> recordings(1);
  std::vector<StreamId> delayed;
  Streams* streams_of_rank = nullptr;
  run_staged(
      recordings,
      [&](Communicator& staged, Streams& streams) {
        streams_of_rank = &streams;
        const at::Tensor tensor = on_device(staged, at::ones({4}));
        const StreamScope scope(streams, Lane::gather);
        staged.all_reduce(tensor, "sum")->wait();
        CHECK(streams.current() == streams.of(Lane::gather));
      },
      [&] { delayed.push_back(streams_of_rank->current()); });
  const auto gather = 1 + static_cast<StreamId>(Lane::gather);
  CHECK(delayed == std::vector<StreamId>{0, gather, gather});
}

}  // namespace zerorun::testing
