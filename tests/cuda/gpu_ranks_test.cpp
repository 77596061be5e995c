// Tests 2 and 4 ranks that share one GPU, over a StagedCommunicator: they train like ranks on the CPU. So
// everything but NCCL itself runs with several ranks on one card: slices, gathers ahead of their use,
// hand-overs between streams, updates on the host, checkpoints. Skipped without a GPU.
#include <torch/torch.h>

#include <catch2/catch.hpp>
#include <cmath>
#include <cstdio>
#include <cstdlib>

#include "base/cuda_driver.h"
#include "tests/cuda/staged_ranks.h"
#include "tests/support/forward_collective.h"
#include "tests/support/staged_communicator.h"
#include "tests/support/temporary_folder.h"

namespace zerorun::testing {
namespace {

constexpr char kStreams[] = "a rank's collectives on streams of the GPU";
constexpr std::chrono::seconds kAmple{60};

// Ends the program if there is no GPU.
void need_gpu() {
  std::string reason;
  if (count_usable_gpus(reason) > 0) return;
  std::printf("skipped: %s\n", reason.c_str());
  std::exit(77);
}

// The allowed relative difference of losses from those of CPU ranks, which differ in the order of additions
// only: the values of gpu_training_test.cpp, where they are explained.
double tolerance_of(const std::string& precision) {
  return precision == "fp32" ? 1e-5 : 2e-3;
}

void check_near(const Outcome& found, const Outcome& expected, double tolerance, size_t first_step = 0) {
  REQUIRE(found.losses.size() == expected.losses.size());
  for (size_t step = first_step; step < found.losses.size(); ++step) {
    CAPTURE(step);
    CHECK(std::abs(found.mean_loss(step) - expected.mean_loss(step)) <= tolerance * expected.mean_loss(step));
  }
}

at::Tensor numbers(int rank, int round, int64_t numel) {
  return (at::arange(numel, at::kDouble) * 0.37 + rank * 1.9 + round).sin().to(at::kFloat);
}

// Runs reductions and gathers of several sizes on two lanes, and compares them with those of CPU tensors.
void check_lanes(Communicator& staged, Communicator& control) {
  constexpr int kRounds = 30;
  Streams& streams = staged.device().streams();
  const int ranks = staged.world_size();
  std::vector<at::Tensor> found;
  std::vector<at::Tensor> expected;
  std::vector<at::Tensor> inputs;  // kept until the lanes have read them
  for (int round = 0; round < kRounds; ++round) {
    const int64_t slice = 1000 + 40'000 * (round % 7);
    for (const Lane lane : {Lane::reduce, Lane::gather}) {
      const bool reduces = lane == Lane::reduce;
      const at::Tensor input = numbers(staged.rank(), round, reduces ? slice * ranks : slice);
      const at::Tensor output = at::zeros({reduces ? slice : slice * ranks});
      const CollectiveCall call{
          reduces ? Collective::reduce_scatter : Collective::all_gather, output, input, 0, "values", ""};
      forward(control, call)->wait();
      expected.push_back(output);

      CollectiveCall on_gpu = call;
      on_gpu.input = input.to(staged.device().location());
      on_gpu.output = at::zeros_like(output, at::TensorOptions().device(staged.device().location()));
      inputs.push_back(on_gpu.input);
      found.push_back(on_gpu.output);
      Event ready;
      streams.record(ready, streams.current());
      streams.wait(ready, streams.of(lane), Handover::written);
      const StreamScope scope(streams, lane);
      forward(staged, on_gpu)->wait();
    }
  }
  for (const Lane lane : {Lane::reduce, Lane::gather}) {
    Event done;
    streams.record(done, streams.of(lane));
    streams.await(done, kAmple, "the lane");
  }
  for (size_t i = 0; i < found.size(); ++i) CHECK(torch::equal(found[i].cpu(), expected[i]));
}

}  // namespace

TEST_CASE(kStreams, "[.]") {
  folder_of_rank();
  const std::shared_ptr<Communicator> control = connect_on_cpu();
  const std::shared_ptr<Device> device = first_gpu();
  Streams& streams = device->streams();
  const StreamId compute = streams.current();
  const auto sleep = gpu_delay();
  int64_t delay = 20;  // in microseconds
  StagedCommunicator staged(control, device, [&] {
    if (streams.current() != compute) sleep(delay);
  });
  check_lanes(staged, *control);

  // The sum comes to the GPU 200 ms after all_reduce() has returned. A stream that does not wait has the old
  // values.
  const at::Tensor tensor = at::ones({1000}, at::TensorOptions().device(device->location()));
  const at::Tensor early = at::zeros_like(tensor);
  const at::Tensor late = at::zeros_like(tensor);
  delay = 200'000;
  Event ready;
  streams.record(ready, compute);
  streams.wait(ready, streams.of(Lane::gather), Handover::updated);
  Event summed;
  {
    const StreamScope scope(streams, Lane::gather);
    staged.all_reduce(tensor, "values")->wait();
    streams.record(summed, streams.current());
  }
  early.copy_(tensor);
  streams.wait(summed, compute, Handover::gathered);
  late.copy_(tensor);
  CHECK(early.sum().item<float>() == 1000);
  CHECK(late.sum().item<float>() == 1000 * static_cast<float>(staged.world_size()));
}

TEST_CASE("GPU ranks: collectives run on the caller's stream, and give the bits of the CPU's") {
  need_gpu();
  const TemporaryFolder folder;
  run_on_ranks(kStreams, Where::gpu, 2, folder / "");
}

TEST_CASE("GPU ranks: ranks that share a GPU train like ranks on the CPU, with the same bits at all stages") {
  need_gpu();
  const int ranks = GENERATE(2, 4);
  std::vector<Run> all;
  std::vector<Run> compared;
  std::map<std::string, double> tolerances;  // by the run's name
  for (const std::string precision : {"fp32", "bf16"}) {
    for (const int accumulation : {1, 2}) {
      const std::string prefix = precision + ", accumulation " + std::to_string(accumulation) + ", ";
      for (const Run& run : all_stages(prefix, precision, accumulation)) {
        all.push_back(run);
        if (run.same_as == run.name) compared.push_back(run);
        tolerances[run.name] = tolerance_of(precision);
      }
    }
  }
  const Outcomes found = train_in_processes(Where::gpu, ranks, all);
  const Outcomes expected = train_in_processes(Where::cpu, ranks, compared);
  for (const Run& run : all) {
    CAPTURE(ranks, run.name);
    check_near(found.at(run.name), expected.at(run.same_as), tolerances.at(run.name));
    check_same_bits(found.at(run.name), found.at(run.same_as));
  }
}

TEST_CASE("GPU ranks: two data groups of ranks that share a GPU have the bits of one") {
  need_gpu();
  std::vector<Run> runs = all_stages("fp32, ", "fp32", 1);
  for (const Run& run : all_stages("bf16, accumulation 2, ", "bf16", 2)) runs.push_back(run);
  const Outcomes grouped = train_in_processes(Where::gpu, 4, in_two_groups(runs));
  const Outcomes alone = train_in_processes(Where::gpu, 2, runs);
  for (const Run& run : runs) {
    CAPTURE(run.name);
    check_groups_are(grouped.at(run.name), alone.at(run.name));
  }
}

namespace {

// Trains on four ranks.
void check_like_cpu_ranks(const std::vector<Run>& runs, const std::string& precision) {
  const Outcomes found = train_in_processes(Where::gpu, 4, runs);
  const Outcomes expected = train_in_processes(Where::cpu, 4, runs);
  for (const Run& run : runs) {
    CAPTURE(precision, run.name);
    check_same_bits(found.at(run.name), found.at(run.same_as));
    check_near(found.at(run.name), expected.at(run.name), tolerance_of(precision), 0);
  }
}

}  // namespace

TEST_CASE("GPU ranks: ranks that share a GPU and split the model train like ranks on the CPU") {
  need_gpu();
  for (const char* precision : {"fp32", "bf16"})
    check_like_cpu_ranks(split_in_two(all_stages("", precision, 1)), precision);
}

TEST_CASE("GPU ranks: pipeline stages that share a GPU train like ranks on the CPU") {
  need_gpu();
  for (const char* precision : {"fp32", "bf16"})
    check_like_cpu_ranks(divided_in_two(all_stages("", precision, 3)), precision);
}

TEST_CASE("GPU ranks: two ranks that share a GPU load the checkpoint of four") {
  need_gpu();
  const TemporaryFolder folder;
  const Run save{.name = "save", .config = config_of(3, "bf16", 1), .save_to = folder / "saved"};
  const Outcomes saved = train_in_processes(Where::gpu, 4, {save});
  const std::vector<Run> runs = continued_runs(folder / "saved");
  const Outcomes found = train_in_processes(Where::gpu, 2, runs);
  const Outcomes expected = train_in_processes(Where::cpu, 2, runs);
  CHECK(found.at("loaded").parameters == saved.at("save").parameters);
  CHECK(expected.at("loaded").parameters == saved.at("save").parameters);
  check_same_bits(found.at("stage 3"), found.at("stage 1"));
  check_near(found.at("stage 3"), expected.at("stage 3"), tolerance_of("bf16"), 4);
}

}  // namespace zerorun::testing
