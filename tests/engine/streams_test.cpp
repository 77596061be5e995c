// Tests the engine on a device with streams. Every hand-over of memory between streams exists and is
// necessary, the results are those of a device without streams, and the host waits only where it must.
#include <catch2/catch.hpp>
#include <vector>

#include "engine/setup.h"
#include "tests/engine/net.h"
#include "tests/engine/streams_support.h"
#include "tests/support/rank_threads.h"
#include "tests/support/settings.h"
#include "tests/support/temporary_folder.h"
#include "tests/support/tiny_gpt2.h"

namespace zerorun::testing {

TEST_CASE("streams: no hand-over is missing, and the bits are those of a device without streams") {
  for (const auto& [stage, ranks, type, accumulates, overlap, side] : settings(4, 3, 3, 2, 2, 2)) {
    const Setting setting{stage, 1 + ranks, kPrecisions[type], accumulates == 1 ? 3 : 1, overlap == 1};
    CAPTURE(stage, setting.ranks, setting.precision, setting.accumulation, overlap, side);
    check_beside_plain(setting, {.side_streams = side == 1});
  }
}

TEST_CASE("streams: writes by the program, scopes and late gradients are handed over too") {
  const TemporaryFolder folder;
  const Program programs[] = {{.writes = true},
                              {.two_backwards = true},
                              {.halves_gradients = true},
                              {.writes = true, .saves_to = folder / "a"}};
  for (const auto& [what, stage, ranks, type, side] : settings(4, 4, 2, 2, 2)) {
    CAPTURE(what, stage, ranks, type, side);
    Program program = programs[what];
    program.side_streams = side == 1;
    check_beside_plain({stage, 1 + ranks, kPrecisions[type]}, program);
  }
}

TEST_CASE("streams: buckets that evaluation gathers between steps are handed over, and stay allocated") {
  const int ranks = GENERATE(2, 3);
  const int max_live = GENERATE(600, 700, 100000);
  const bool side_streams = GENERATE(false, true);
  CAPTURE(ranks, max_live, side_streams);
  const Setting setting{.stage = 3, .ranks = ranks, .max_live = max_live};
  std::vector<Recording> recordings(ranks);
  std::vector<int64_t> allocations;
  Program program{.side_streams = side_streams, .evaluates = true};
  program.after_step = [&](int, Engine& engine) {
    if (engine.communicator().rank() == 0) allocations.push_back(recordings[0].allocations);
  };
  const StreamRun recorded = run_recorded(setting, program, recordings);
  check_clean(recordings);
  // The limit of 700 elements is an exception: it has room for all parameters, but not for the arena too, so
  // evaluation allocates memory.
  for (size_t step = 4; step < allocations.size() && max_live != 700; ++step) {
    CHECK(allocations[step] == allocations[step - 1]);
  }
  program.after_step = [](int, Engine&) {};
  check_same(recorded, run_plain(setting, program));
}

TEST_CASE("streams: optimizers that need whole parameters hand over the tensors that they send") {
  for (const auto& [stage, precision, muon] : settings(4, 2, 2)) {
    CAPTURE(stage, precision, muon);
    const std::string type = muon == 1 ? "Muon" : "Lamb";
    check_beside_plain({.stage = stage,
                        .precision = kPrecisions[precision],
                        .optimizer = R"({"type": ")" + type + R"(", "params": {"lr": 0.01}})"},
                       {.side_streams = true});
  }
}

TEST_CASE("streams: every kind of hand-over is necessary") {
  const TemporaryFolder folder;
  for (int handover = 0; handover < kHandovers; ++handover) {
    const auto dropped = static_cast<Handover>(handover);
    int64_t waits = 0;
    size_t violations = 0;
    std::string first;
    for (const auto& [stage, offload] :
         {std::pair(3, kHostUpdate), {3, ""}, {2, ""}, {1, ""}, {1, kHostUpdate}, {2, kHostUpdate}}) {
      if (violations > 0) break;
      std::vector<Recording> recordings(2);
      for (Recording& recording : recordings) recording.dropped = dropped;
      run_recorded({.stage = stage, .ranks = 2, .precision = kBf16, .offload = offload},
                   {.side_streams = true, .writes = true, .saves_to = folder / "a"}, recordings);
      run_recorded({.stage = stage, .ranks = 2, .precision = kBf16, .offload = offload},
                   {.two_backwards = true}, recordings);
      for (const Recording& recording : recordings) {
        waits += recording.waits[handover];
        violations += recording.checker.violations().size();
        if (first.empty() && !recording.checker.violations().empty()) {
          first = recording.checker.violations().front();
        }
      }
    }
    INFO("without the waits for " << name_of(dropped));
    CHECK(waits == 0);
    CHECK(violations > 0);
    std::printf("without %-9s %5zu violations, as: %s\n", name_of(dropped), violations, first.c_str());
  }
}

TEST_CASE("streams: Muon gathers on the stream of gathers, and each of its hand-overs is necessary") {
  for (const Handover dropped : {Handover::updated, Handover::gathered, Handover::released}) {
    std::vector<Recording> recordings(2);
    for (Recording& recording : recordings) recording.dropped = dropped;
    run_recorded({.stage = 2, .ranks = 2, .optimizer = R"({"type": "Muon", "params": {"lr": 0.01}})"}, {},
                 recordings);
    std::string found;
    for (const std::string& violation : recordings[0].checker.violations())
      if (found.empty() && violation.find("Muon's directions") != std::string::npos) found = violation;
    INFO("without the waits for " << name_of(dropped) << ": " << found);
    CHECK(found.find(dropped == Handover::updated    ? "gather reads (all_gather"
                     : dropped == Handover::gathered ? "what gather writes (all_gather"
                                                     : "gather writes (all_gather") != std::string::npos);
  }
}

TEST_CASE("streams: a skipped step has the same effect whether the host learns of it at once or later") {
  for (const auto& [stage, type, last] : settings(4, 3, 2)) {
    CAPTURE(stage, type, last);
    check_beside_plain({.stage = stage, .precision = kPrecisions[type]},
                       {.infinite_step = last == 1 ? 5 : 1});
  }
}

TEST_CASE("streams: only fp16 waits for a step's own results, and a step allocates nothing") {
  const int stage = GENERATE(0, 1, 2, 3);
  const std::string precision = GENERATE(kFp32, kBf16, kFp16);
  CAPTURE(stage, precision);
  std::vector<Recording> recordings(2);
  struct Counts {
    int64_t host_waits, allocations, frees;
    bool operator==(const Counts&) const = default;
  };
  std::vector<Counts> counts;
  Program program{.steps = 8};
  program.after_step = [&](int, Engine& engine) {
    if (engine.communicator().rank() != 0) return;
    counts.push_back({recordings[0].host_waits, recordings[0].allocations, recordings[0].frees});
  };
  run_recorded({.stage = stage, .ranks = 2, .precision = precision}, program, recordings);
  check_clean(recordings);
  // The host waits once per step. Under fp16 it waits for this step's results, otherwise for those of the
  // previous step.
  for (size_t step = 4; step < counts.size(); ++step) {
    CHECK(counts[step].host_waits - counts[step - 1].host_waits == 1);
    CHECK(counts[step].allocations == counts[step - 1].allocations);
    CHECK(counts[step].frees == counts[step - 1].frees);
  }
  // initialize() waits once. Under fp16 the first step waits too.
  CHECK(counts[0].host_waits == (precision == kFp16 ? 2 : 1));
}

TEST_CASE("streams: late gradients in every step allocate memory once; it is freed when they come no more") {
  const int stage = GENERATE(0, 1, 2, 3);
  const std::string precision = GENERATE(kFp32, kBf16);
  CAPTURE(stage, precision);
  std::vector<Recording> recordings(2);
  std::vector<int64_t> allocations;
  std::vector<int64_t> bytes;
  Program program{.steps = 10, .two_backwards = true, .one_backward_from = 8};
  program.after_step = [&](int, Engine& engine) {
    if (engine.communicator().rank() != 0) return;
    allocations.push_back(recordings[0].allocations);
    bytes.push_back(engine.bytes_by_category().buckets);
  };
  run_recorded({.stage = stage, .ranks = 2, .precision = precision}, program, recordings);
  check_clean(recordings);
  for (size_t step = 4; step < 8; ++step) CHECK(allocations[step] == allocations[step - 1]);
  CHECK((bytes[9] < bytes[7]) ==
        (stage < 2));  // later stages reduce every backward, so none of these is late
}

TEST_CASE("streams: memory of gathers without a plan goes back once, before the arena, after all uses") {
  const int stage = GENERATE(2, 3);
  const std::string precision = GENERATE(kFp32, kBf16);
  const bool side_streams = GENERATE(false, true);
  CAPTURE(stage, precision, side_streams);
  std::vector<Recording> recordings(2);
  std::vector<int64_t> emptied;
  Program program{.side_streams = side_streams};
  program.after_step = [&](int, Engine& engine) {
    if (engine.communicator().rank() == 0) emptied.push_back(recordings[0].emptied);
  };
  run_recorded({.stage = stage, .ranks = 2, .precision = precision}, program, recordings);
  check_clean(recordings);
  CHECK(emptied.front() == (stage == 3 ? 1 : 0));
  CHECK(emptied.back() == emptied.front());
}

TEST_CASE("streams: the device limits the size of buckets; at stage 3 all can be gathered ahead") {
  const int stage = GENERATE(2, 3);
  CAPTURE(stage);
  constexpr int64_t kNumel = int64_t{1} << 20;
  ModelParameters model;
  for (int index = 0; index < 1024; ++index) {
    model.trained.push_back({std::to_string(index), torch::empty({kNumel}, torch::device(torch::kMeta)), 0});
  }
  const std::string text = R"({"train_micro_batch_size_per_gpu": 1, "optimizer": {"type": "SGD"},
      "zero_optimization": {"stage": )" +
                           std::to_string(stage) + R"(, "stage3_prefetch_bucket_size": 20e6}})";
  const Config config = parse_config(text, "a test", 1);
  for (const auto& [limit, at_stage_3] : {std::pair(16, 16), {32, 32}, {128, 76}}) {
    Recording recording;
    recording.bucket_bytes = limit * kNumel;
    int64_t bytes = 0;
    run_ranks(1, [&](std::shared_ptr<Communicator> communicator) {
      const auto recorded = make_recording_communicator(std::move(communicator), recording);
      bytes = 4 * make_model_layout(model, config, {}, Mesh(recorded)).buckets.front().numel;
    });
    CHECK(bytes == (stage == 3 ? at_stage_3 : limit) * kNumel);
  }
}

TEST_CASE("streams: initialize() registers no memory that it does not keep") {
  const std::string precision = GENERATE(kFp32, kBf16);
  CAPTURE(precision);
  std::vector<Recording> recordings(2);
  int64_t registered = -1;
  int64_t kept = 0;
  const std::string config = config_of({.stage = 3, .ranks = 2, .precision = precision});
  run_ranks(2, [&](std::shared_ptr<Communicator> communicator) {
    Recording& recording = recordings.at(communicator->rank());
    Net net;
    Engine engine = make_engine(*net, config, make_recording_communicator(communicator, recording));
    if (communicator->rank() != 0) return;
    registered = recording.registered_bytes;
    const BytesByCategory bytes = engine.bytes_by_category();
    kept = bytes.parameters + bytes.gradients + bytes.buckets + bytes.buffers -
           static_cast<int64_t>(net->counter.nbytes());
  });
  CHECK(registered == kept);
}

TEST_CASE("streams: a model trains to the same bits in every precision and stage") {
  const int stage = GENERATE(0, 1, 2, 3);
  const std::string precision = GENERATE(kFp32, kBf16, kFp16);
  CAPTURE(stage, precision);
  const std::string config = config_of({.stage = stage, .precision = precision, .accumulation = 2});
  RunOptions options{.world_size = 2, .steps = 4, .bucket_numel = {}, .group_weight_decay = {}};
  options.inject_inf_steps = {2};
  const RunResult plain = train_tiny_gpt2(config, options);
  std::vector<Recording> recordings(2);
  options.communicator_for = [&](std::shared_ptr<Communicator> communicator) {
    Recording& recording = recordings.at(communicator->rank());
    return make_recording_communicator(std::move(communicator), recording);
  };
  check_same_bits(train_tiny_gpt2(config, options), plain);
  check_clean(recordings);
}

}  // namespace zerorun::testing
