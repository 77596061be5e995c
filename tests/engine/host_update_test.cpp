// Tests updates in host memory for parameters on another device, the recording device. Results must have the
// bits of a device without streams, uses of memory must be ordered, every wait of the host must be necessary,
// and the memory in use must be that of the formula (Engine::formula_bytes()).
#include <catch2/catch.hpp>

#include "tests/engine/streams_support.h"
#include "tests/support/rank_threads.h"
#include "tests/support/settings.h"
#include "tests/support/temporary_folder.h"

namespace zerorun::testing {
namespace {

struct Home {
  int stage;
  std::string offload;  // slices of parameters can be offloaded only at stage 3
};

std::vector<Home> homes(const TemporaryFolder& folder) {
  return {
      {1, kHostUpdate}, {2, kHostUpdate}, {3, kHostUpdate}, {3, kHostSlices}, {3, in_files_of(folder / "")}};
}

}  // namespace

TEST_CASE("host update: the bits are those of a device without streams, and all uses of memory are ordered") {
  const TemporaryFolder folder;
  const std::vector<Home> table = homes(folder);
  for (const auto& [home, ranks, type, accumulates, overlap, side] : settings(table.size(), 3, 3, 2, 2, 2)) {
    const auto& [stage, offload] = table[home];
    const Setting setting{.stage = stage,
                          .ranks = 1 + ranks,
                          .precision = kPrecisions[type],
                          .accumulation = accumulates == 1 ? 3 : 1,
                          .overlap = overlap == 1,
                          .offload = offload};
    CAPTURE(stage, setting.ranks, setting.precision, setting.accumulation, overlap, offload, side);
    check_beside_plain(setting, {.side_streams = side == 1, .evaluates = side == 1});
  }
}

TEST_CASE("host update: writes of the program, late and written gradients, checkpoints and skipped steps") {
  const TemporaryFolder folder;
  const std::vector<Home> table = homes(folder);
  Program reloads;
  reloads.after_step = [&](int, Engine& engine) {
    engine.save_checkpoint(folder / "reloads");
    engine.load_checkpoint(folder / "reloads");
  };
  const Program programs[] = {{.side_streams = true, .writes = true},
                              {.two_backwards = true},
                              {.halves_gradients = true},
                              {.writes = true, .saves_to = folder / "saves"},
                              reloads};
  for (const auto& [home, ranks, type, what] : settings(table.size(), 2, 3, std::size(programs))) {
    const auto& [stage, offload] = table[home];
    CAPTURE(stage, ranks, type, what, offload);
    check_beside_plain(
        {.stage = stage, .ranks = 1 + ranks, .precision = kPrecisions[type], .offload = offload},
        programs[what]);
  }
  for (const auto& [home, type, last] : settings(table.size(), 3, 2)) {
    const auto& [stage, offload] = table[home];
    CAPTURE(stage, type, last, offload);
    check_beside_plain({.stage = stage, .precision = kPrecisions[type], .offload = offload},
                       {.infinite_step = last == 1 ? 5 : 1});
  }
  for (const auto& [stage, type] : settings(2, 3)) {
    CAPTURE(stage, type);
    check_beside_plain(
        {.stage = 1 + stage, .ranks = 1, .precision = kPrecisions[type], .offload = kHostUpdate},
        {.reads_raw = true});
  }
}

TEST_CASE("host update: every optimizer of the config, and states in files") {
  const TemporaryFolder folder;
  const std::string offloads[] = {kHostSlices, in_files_of(folder / ""), kHostUpdate};
  const std::string types[] = {"Adam", "SGD", "Adagrad", "Lion", "Lamb", "Muon"};
  for (const auto& [stage, precision, type, in_files] : settings(2, 2, std::size(types), 2)) {
    CAPTURE(stage, precision, types[type], in_files);
    check_beside_plain({.stage = 1 + 2 * stage,
                        .precision = kPrecisions[precision],
                        .optimizer = R"({"type": ")" + types[type] + R"(", "params": {"lr": 0.01}})",
                        .offload = offloads[in_files]},
                       {.side_streams = true});
  }
  for (const auto& [stage, precision, update] : settings(2, 2, 2)) {
    CAPTURE(stage, precision, update);
    check_beside_plain({.stage = 1 + 2 * stage,
                        .precision = kPrecisions[precision],
                        .client = true,
                        .offload = offloads[2 * update]},
                       {});
  }
}

TEST_CASE("host update: the buffers of slices in files are page-locked while the engine exists") {
  const TemporaryFolder folder;
  for (const auto& [offload, pins] : {std::pair(in_files_of(folder / ""), true), {kHostSlices, false}}) {
    std::vector<Recording> recordings(2);
    std::vector<int64_t> pinned;
    Program program{.steps = 2};
    program.after_step = [&](int, Engine& engine) {
      if (engine.communicator().rank() == 0) pinned.push_back(recordings[0].pinned_bytes);
    };
    run_recorded({.stage = 3, .ranks = 2, .precision = kBf16, .offload = offload}, program, recordings);
    REQUIRE(pinned.size() == 2);
    CHECK((pinned[0] > 0) == pins);
    CHECK(pinned[1] == pinned[0]);
    CHECK(recordings[0].pinned_bytes == 0);
  }
}

TEST_CASE("host update: every wait of the host is necessary") {
  using Row = std::pair<const char*, const char*>;
  for (const auto& [what, offload] :
       {Row{"the gradient norm", kHostUpdate}, Row{"what was written to", kHostUpdate},
        Row{"what was written to", kHostSlices}, Row{"the gather of", kHostSlices}}) {
    size_t violations = 0;
    int64_t dropped = 0;
    std::string first;
    for (const int stage : {3, 2, 1}) {
      if (violations > 0) break;
      std::vector<Recording> recordings(2);
      for (Recording& recording : recordings) recording.dropped_on_host = what;
      run_recorded({.stage = stage, .ranks = 2, .precision = kBf16, .offload = offload},
                   {.side_streams = true, .writes = true, .evaluates = true}, recordings);
      for (const Recording& recording : recordings) {
        dropped += recording.dropped_host_waits;
        violations += recording.checker.violations().size();
        if (first.empty() && violations > 0) first = recording.checker.violations().front();
      }
    }
    CAPTURE(what, offload);
    CHECK(dropped > 0);
    CHECK(violations > 0);
    std::printf("without %-26s %5zu violations, as: %s\n", what, violations, first.c_str());
  }
}

TEST_CASE(
    "host update: memory of the device and of the host is that of the formula, and a step allocates none") {
  const int stage = GENERATE(1, 2, 3);
  const std::string precision = GENERATE(kFp32, kBf16);
  const bool has_slices = GENERATE(false, true);
  CAPTURE(stage, precision, has_slices);
  std::vector<Recording> recordings(2);
  std::vector<int64_t> on_host, allocations, host_waits;
  BytesByCategory bytes;
  double formula = 0;
  Program program{.steps = 6};
  program.after_step = [&](int, Engine& engine) {
    if (engine.communicator().rank() != 0) return;
    on_host.push_back(recordings[0].host_bytes);
    allocations.push_back(recordings[0].allocations);
    host_waits.push_back(recordings[0].host_waits);
    bytes = engine.bytes_by_category();
    formula = engine.formula_bytes();
  };
  run_recorded(
      {.stage = stage, .ranks = 2, .precision = precision, .offload = has_slices ? kHostSlices : kHostUpdate},
      program, recordings);
  check_clean(recordings);
  CHECK((bytes.parameters == 0) == (stage == 3 && has_slices));
  CHECK(bytes.master == 0);
  CHECK(bytes.moments == 0);
  CHECK(static_cast<double>(bytes.model_states()) >= formula);
  // Bytes per element of this rank's slices: the master weight and two moments, the gradient, and a 16-bit
  // value. In fp32 the master weight is the value.
  const int64_t gradient = precision == kFp32 || stage > 1 ? 4 : 2;
  const int64_t element = 4 + 8 + gradient + (precision == kFp32 ? 0 : 2);
  CHECK(bytes.on_host % element == 0);
  const int64_t elements = bytes.on_host / element;
  CHECK(elements >= 4 * (12 * 12 + 12) / 2);
  CHECK(elements < 4 * (12 * 12 + 12) / 2 + 200);  // room for alignment
  // Host memory also has the StepFacts.
  CHECK(on_host.front() >= bytes.on_host);
  CHECK(on_host.front() - bytes.on_host < 200);
  // In each step the host waits once for the StepFacts. With slices in host memory it also waits twice for
  // each bucket: for the gathers that read its slice, and for the writers of the slice.
  constexpr int64_t kBuckets = 4;  // one for each layer
  const int64_t waits = stage == 3 && has_slices ? 1 + 2 * kBuckets : 1;
  for (size_t step = 3; step < on_host.size(); ++step) {
    CHECK(on_host[step] == on_host[step - 1]);
    CHECK(allocations[step] == allocations[step - 1]);
    CHECK(host_waits[step] - host_waits[step - 1] == waits);
  }
}

}  // namespace zerorun::testing
