// Tests pipelines, and messages in groups of ranks, on a CPU device that records its streams' uses of memory.
#include <catch2/catch.hpp>
#include <string>
#include <vector>

#include "comm/mesh.h"
#include "tests/engine/pipeline_support.h"
#include "tests/support/expectations.h"
#include "tests/support/rank_threads.h"
#include "tests/support/recording_device.h"

namespace zerorun::testing {
namespace {

constexpr MeshSizes kTwoStages{.data = 2, .tensor = 1, .pipeline = 2};  // data: 0 1, 2 3; pipeline: 0 2, 1 3

// Makes `after` wait for the work of `before` so far.
void order(Streams& streams, StreamId before, StreamId after) {
  Event event;
  streams.record(event, before);
  streams.wait(event, after, Handover::written);
}

// The first stage writes values and sends them on the stream of copies; the last one receives them there and
// adds them up on the compute stream. Returns how many uses are out of order on this rank.
size_t pass_message(Communicator& world, Recording& recording, bool orders) {
  const Mesh mesh({&world, [](Communicator*) {}}, kTwoStages);
  Communicator& stages = mesh.along(MeshAxis::pipeline);
  Streams& streams = world.device().streams();
  const StreamId compute = streams.current();
  const StreamId copies = streams.of(Lane::copy);
  const at::Tensor values = world.device().allocate(10, at::kFloat);
  const at::Tensor others = at::full({10}, world.rank() + 3.0F);
  if (stages.rank() == 0) world.device().copy(values, others);
  if (orders) order(streams, compute, copies);
  {
    const StreamScope scope(streams, Lane::copy);
    if (stages.rank() == 0) stages.send(values, 1, "activations")->wait();
    if (stages.rank() == 1) stages.receive(values, 0, "activations")->wait();
  }
  if (orders) order(streams, copies, compute);
  if (stages.rank() == 1) world.device().copy(others, values);
  expect(others[9].item<float>() == static_cast<float>(mesh.coordinates().data + 3), "the message");
  return recording.checker.violations().size();
}

}  // namespace

TEST_CASE(
    "Messages in groups on a device with streams: a stream that does not wait is noticed on both ranks") {
  for (const bool orders : {true, false}) {
    CAPTURE(orders);
    std::vector<Recording> recordings(4);
    CHECK_NOTHROW(run_ranks(4, [&](std::shared_ptr<Communicator> inner) {
      Recording& recording = recordings.at(static_cast<size_t>(inner->rank()));
      const auto world = make_recording_communicator(std::move(inner), recording);
      expect((pass_message(*world, recording, orders) == 0) == orders, "uses out of order");
    }));
  }
}

TEST_CASE("Pipeline stages on devices with streams: the bits of other ranks, and no use is out of order") {
  const DecoderOptions tied = {.tied = true, .layers = 4};
  for (int stage = 0; stage < 4; ++stage) {
    CAPTURE(stage);
    std::vector<Recording> recordings(4);
    std::vector<TrainedDecoder> plain(4);
    const auto train = [&](const std::shared_ptr<Communicator>& communicator) {
      Decoder model(tied);
      Engine engine = divided_engine(model, decoder_config(stage, kAdam, 3), kTwoStages, communicator);
      return train_divided(engine, model, 2);
    };
    CHECK_NOTHROW(run_ranks(4, [&](const std::shared_ptr<Communicator>& inner) {
      const auto rank = static_cast<size_t>(inner->rank());
      plain[rank] = train(inner);
    }));
    CHECK_NOTHROW(run_ranks(4, [&](const std::shared_ptr<Communicator>& inner) {
      const auto rank = static_cast<size_t>(inner->rank());
      const TrainedDecoder found = train(make_recording_communicator(inner, recordings[rank]));
      expect(found.losses == plain[rank].losses && found.norms == plain[rank].norms, "losses and norms");
      for (const auto& [name, values] : found.parameters)
        expect_same(values, plain[rank].parameters.at(name), name);
    }));
    for (const Recording& recording : recordings) CHECK(recording.checker.violations().empty());
  }
}

}  // namespace zerorun::testing
