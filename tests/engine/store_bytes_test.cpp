// Tests how the slice store counts the bytes of slices. The count must equal the bytes that the device has
// allocated, and agree with the estimate that is made before training.
#include <catch2/catch.hpp>

#include "engine/memory_check.h"
#include "tests/engine/net.h"
#include "tests/engine/partition_support.h"
#include "tests/engine/state_support.h"
#include "tests/support/rank_threads.h"
#include "tests/support/recording_device.h"
#include "tests/support/settings.h"
#include "tests/support/temporary_folder.h"
#include "zero/deferred_init.h"

namespace zerorun::testing {
namespace {

// Upper bound, in bytes, of allocations that the store does not count: StepFacts, tallies and Lamb's norms.
// Here they take at most 424 bytes (Lamb on 3 ranks).
constexpr int64_t kNumbers = 512;
// The test notices that the store fails to count a tensor of a slice only if the tensor is larger than this
// bound. The tensors of `first` and `last` are. The smallest of them has a third of the 67 x 13 elements of
// `last`: on three ranks, in 16 bits. The tensors of slices with only `bias` or `fixed` are smaller than the
// bound.
static_assert(67 * 13 / 3 * 2 >= kNumbers);

void check_bytes(const StateTraining& training, const Recording& recording, const std::string& when) {
  const SliceStore& store = training.state->store;
  int64_t kept = 0;
  store.for_each([&](int, const StateTensor& state) { kept += store.bytes(state); });
  const BytesByCategory bytes = training.engine->bytes_by_category();
  int64_t beside = 0;  // bytes of tensors that are not in buckets
  for (const NamedTensor& other : training.state->unbucketed)
    beside += static_cast<int64_t>(other.tensor.nbytes());
  expect(bytes.model_states() + bytes.buffers - beside == kept,
         when + ": the categories are not what is kept");
  const int64_t rest = recording.live_bytes - kept - bytes.buckets - bytes.gathered;
  expect(rest >= 0 && rest < kNumbers, when + ": " + std::to_string(recording.live_bytes) +
                                           " bytes are given out, and " + std::to_string(kept) + " kept, " +
                                           std::to_string(bytes.buckets) + " in buckets, " +
                                           std::to_string(bytes.gathered) + " gathered");
}

const std::string kPrecisions[] = {"fp32", "bf16", "fp16"};
const std::string kAccumulations[] = {"", R"(, "gradient_accumulation_steps": 2)"};

}  // namespace

TEST_CASE("The store counts all memory that the device has allocated for slices") {
  const std::vector<StateCase> cases = all_state_cases();
  for (const auto& setting : settings(cases.size(), 4, 3, 2)) {
    const StateCase& how = cases[setting[0]];
    const int stage = setting[1];
    const std::string& precision = kPrecisions[setting[2]];
    const std::string& accumulation = kAccumulations[setting[3]];
    CAPTURE(how.name, stage, precision, accumulation);
    CHECK_NOTHROW(run_ranks(3 - setting[3], [&](std::shared_ptr<Communicator> communicator) {
      Recording recording;
      const auto counted = make_recording_communicator(std::move(communicator), recording);
      StateTraining training(how, stage, precision, counted, accumulation);
      check_bytes(training, recording, "at the start");
      for (int step = 0; step < 2; ++step) {
        training.step(step);
        check_bytes(training, recording, "step " + std::to_string(step));
      }
    }));
  }
}

TEST_CASE("The estimate of memory before training is exact or too low, never too high") {
  const TemporaryFolder folder;
  std::vector<StateCase> cases = all_state_cases();
  cases.push_back(in_files(cases.front(), folder / "files"));
  cases.push_back(with_values_in_files(cases.front(), folder / "files"));
  for (const auto& setting : settings(cases.size(), 4, 3, 2, 2)) {
    const StateCase& how = cases[setting[0]];
    const int stage = &how == &cases.back() ? 3 : setting[1];  // only there values can be in files
    const std::string& precision = kPrecisions[setting[2]];
    const bool shares_memory = setting[3] == 1;
    const std::string& accumulation = kAccumulations[setting[4]];
    CAPTURE(how.name, stage, precision, shares_memory, accumulation);
    CHECK_NOTHROW(run_ranks(
        2,
        [&](std::shared_ptr<Communicator> communicator) {
          StateTraining training(how, stage, precision, communicator, accumulation);
          for (int step = 0; step < 2; ++step) training.step(step);
          const EngineState& state = *training.state;
          const NeededMemory needed =
              needed_memory(state.store, state.config, {}, state.buckets.options(), /*on_gpu=*/false);
          int64_t values = 0, gradients = 0, master = 0, moments = 0;
          state.store.for_each([&](int, const StateTensor& kept) {
            (kept.kind == StateKind::value      ? values
             : kept.kind == StateKind::gradient ? gradients
             : kept.kind == StateKind::master   ? master
                                                : moments) += state.store.bytes(kept);
          });
          // Without shared memory, each rank stores always-resident parameters whole, but the estimate counts
          // only a slice of them.
          const bool has_whole = !shares_memory && stage > 0;
          expect(needed.values == values || (has_whole && needed.values < values),
                 "values: " + std::to_string(needed.values) + " of " + std::to_string(values));
          expect(needed.gradients == gradients || (stage < 2 && needed.gradients < gradients),
                 "gradients: " + std::to_string(needed.gradients) + " of " + std::to_string(gradients));
          expect(needed.master == master, "master weights");
          expect(needed.moments == moments || how.client, "moments");
          expect(needed.checkpoint == 0, "a checkpoint's copy of states");
          expect(needed.gathered <= training.engine->residency().peak_resident_bytes, "gathered parameters");
          expect((needed.gathered > 0) == (state.store.value_files() != nullptr),
                 "values in files are gathered");
        },
        std::chrono::seconds(60), shares_memory));
  }
}

TEST_CASE("The estimate includes the memory that the host provides for a GPU") {
  const int stage = GENERATE(1, 2, 3);
  const std::string precision = GENERATE("fp32", "bf16");
  const TemporaryFolder folder;
  StateCase host = all_state_cases().front();
  host.zero += R"(, "offload_optimizer": {"device": "cpu"})";
  StateCase slices = host;
  slices.zero += R"(, "offload_param": {"device": "cpu"})";
  for (const StateCase& how :
       {host, slices, with_values_in_files(in_files(all_state_cases().front(), folder / ""), folder / "")}) {
    CAPTURE(stage, precision, how.zero);
    Recording recordings[2];
    CHECK_NOTHROW(run_ranks(2, [&](std::shared_ptr<Communicator> communicator) {
      Recording& recording = recordings[communicator->rank()];
      StateTraining training(how, stage, precision,
                             make_recording_communicator(std::move(communicator), recording));
      const EngineState& state = *training.state;
      const NeededMemory needed =
          needed_memory(state.store, state.config, {}, state.buckets.options(), /*on_gpu=*/true);
      const int64_t kept = training.engine->bytes_by_category().on_host;
      expect(needed.total() - needed.buffers == kept,
             std::to_string(needed.total() - needed.buffers) + " of " + std::to_string(kept));
    }));
  }
}

TEST_CASE(
    "The estimate of a checkpoint's memory is what the first save takes from the host, and a later one "
    "reuses") {
  const int stage = GENERATE(0, 1, 2, 3);
  const std::string precision = GENERATE("fp32", "bf16");
  const TemporaryFolder folder;
  StateCase host = all_state_cases().front();
  host.zero += R"(, "offload_optimizer": {"device": "cpu"})";
  for (const StateCase& how : {all_state_cases().front(), host}) {
    if (stage == 0 && how.zero == host.zero) continue;
    CAPTURE(stage, precision, how.zero);
    Recording recordings[2];
    CHECK_NOTHROW(run_ranks(2, [&](std::shared_ptr<Communicator> communicator) {
      Recording& recording = recordings[communicator->rank()];
      StateTraining training(how, stage, precision,
                             make_recording_communicator(std::move(communicator), recording));
      training.step(0);
      const EngineState& state = *training.state;
      const NeededMemory needed =
          needed_memory(state.store, state.config, {}, state.buckets.options(), /*on_gpu=*/true);
      const int64_t before = recording.host_bytes;
      training.engine->save_checkpoint(folder / "a");
      const int64_t first = recording.host_bytes - before;
      // Slices of padding alone are not saved.
      expect(first <= needed.checkpoint && first > needed.checkpoint * 0.98,
             std::to_string(first) + " of " + std::to_string(needed.checkpoint));
      training.step(1);
      training.engine->save_checkpoint(folder / "a");
      expect(recording.host_bytes - before == first, "the second save");
    }));
  }
}

TEST_CASE("A checkpoint that the host has no memory for is a warning with the numbers, not an error") {
  constexpr int64_t kMib = 1 << 20;
  const NeededMemory needed{.buffers = 100 * kMib, .checkpoint = 500 * kMib};
  const MemoryLimit machine{.name = "the machine's memory", .group = "boot", .bytes = 1200 * kMib};
  const RankMemory rank{needed, {machine}};
  const std::vector<RankMemory> two(2, rank);
  CHECK(too_much_for_checkpoints(two).empty());
  const std::vector<RankMemory> three(3, rank);
  CHECK(too_much_memory(three, {}).empty());
  CHECK(too_much_for_checkpoints(three) ==
        "save_checkpoint() copies the states of 3 ranks to the host, 1500 MiB beside the 300 MiB of model "
        "states that are there, and the machine's memory is 1200 MiB with swap: a save may end the job; use "
        "more hosts, or allow more memory");
}

TEST_CASE("A model that is too large for any machine is refused before memory is allocated") {
  CHECK_NOTHROW(run_ranks(2, [](std::shared_ptr<Communicator> communicator) {
    constexpr int64_t kNumel = int64_t{1} << 42;
    torch::nn::Module model;
    {
      DeferredInit scope;
      model.register_parameter("vast", torch::empty({kNumel}));
    }
    const std::string message = user_error([&] {
      make_engine(model, R"({"train_micro_batch_size_per_gpu": 1,
          "optimizer": {"type": "AdamW", "params": {"lr": 0.001}}, "zero_optimization": {"stage": 1}})",
                  communicator);
    });
    // Per element, 4 bytes of values and 8 bytes of moments are divided among the ranks, and each rank has 4
    // bytes of gradients.
    const std::string expected =
        "the model states of 2 ranks take " + std::to_string((4 + 8 + 2 * 4) * (kNumel >> 20)) + " MiB";
    expect(message.starts_with(expected), message);
  }));
}

TEST_CASE("A need beyond the memory of the host or of a cgroup is refused with the numbers") {
  constexpr int64_t kMib = 1 << 20;
  const NeededMemory needed{
      .values = 20 * kMib, .gradients = 20 * kMib, .master = 40 * kMib, .moments = 80 * kMib};
  const MemoryLimit machine{.name = "the machine's memory", .group = "boot", .bytes = 700 * kMib};
  const auto group = [](const std::string& name, int64_t bytes) {
    return MemoryLimit{.name = "/" + name + "/memory.max", .group = name, .bytes = bytes};
  };
  Config config;
  config.zero.stage = 3;
  const auto refusal = [&](std::initializer_list<RankMemory> ranks) {
    return too_much_memory(std::span(ranks.begin(), ranks.size()), config);
  };
  const RankMemory in_a{needed, {machine, group("a", 330 * kMib)}};
  const RankMemory in_b{needed, {machine, group("b", 330 * kMib)}};
  CHECK(refusal({in_a, in_a, in_b, in_b}).empty());
  CHECK(refusal({in_a, in_a, in_b, in_a}) ==
        "the model states of 3 ranks take 480 MiB of memory (parameters 60 MiB, gradients 60 MiB, master "
        "weights 120 MiB, optimizer states 240 MiB, buffers for files 0 MiB, gathered parameters 0 MiB), "
        "activations not counted, and /a/memory.max is 330 MiB with swap: keep optimizer states in files "
        "(zero_optimization.offload_optimizer.device \"nvme\" at stages 1 to 3), use more hosts, a smaller "
        "model, or allow more memory");
  CHECK_THAT(refusal({in_a, in_a, in_b, in_b, {needed, {machine}}}),
             Catch::Matchers::Contains("of 5 ranks take 800 MiB") &&
                 Catch::Matchers::Contains("the machine's memory is 700 MiB"));
  config.zero.offload_optimizer.device = OffloadDevice::nvme;
  CHECK_THAT(refusal({in_a, in_a, in_a}), !Catch::Matchers::Contains("offload_optimizer"));
  CHECK(refusal({{needed, {}}}).empty());
  NeededMemory gathers = needed;
  gathers.gathered = 300 * kMib;
  CHECK_THAT(refusal({{gathers, {group("a", 330 * kMib)}}}),
             Catch::Matchers::Contains("gather fewer parameters at a time") &&
                 Catch::Matchers::Contains("gathered parameters 300 MiB"));
}

}  // namespace zerorun::testing
