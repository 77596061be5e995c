// Tests of logs of runs as files, whole and damaged, and of their comparison.
#include "monitor/run_comparison.h"

#include <catch2/catch.hpp>
#include <cmath>
#include <fstream>
#include <functional>
#include <limits>
#include <string>

#include "base/error.h"
#include "base/hexadecimal.h"
#include "config/config.h"
#include "monitor/run_log_reader.h"
#include "monitor/run_log_writer.h"
#include "tests/support/temporary_folder.h"

namespace zerorun::testing {
namespace {

namespace fs = std::filesystem;
using Catch::Contains;

RunRecord some_run() {
  return {
      .started = "2026-03-01T12:00:00Z",
      .device = "cpu",
      .transport = "shared memory",
      .libtorch = "2.15.0",
      .processor = "AVX2",
      .precision = "fp32",
      .master = "fp32",
      .optimizer = "AdamW",
      .seed = std::numeric_limits<uint64_t>::max(),
      .world_size = 2,
      .mesh = {.data = 2},
      .has_hashes = true,
      .hosts = {"worker-0"},
      .settings = {{"optimizer.params.lr", "0.001", "line 3"}, {"zero_optimization.stage", "1", "line 5"}},
      .parameters = {{"a.weight", {2, 3}}, {"a.bias", {3}}, {"scale", {}, false}}};
}

StepRecord some_step(int64_t step) {
  const auto hash = [&](int64_t more) { return in_hexadecimal(static_cast<uint64_t>(1000 * step + more)); };
  return {.step = step,
          .loss = 1.5 / static_cast<double>(step),
          .losses = {1.0 / static_cast<double>(step), 2.0 / static_cast<double>(step)},
          .gradient_norm = 0.1,
          .lr = 0.001,
          .samples = 2 * step,
          .seconds = 0.5,
          .bytes = {{"parameters", 36}},
          .elements = {{"all_gather", 9.5}},
          .gradients = hash(1) + hash(2),
          .values = hash(3) + hash(4)};
}

using Change = std::function<void(StepRecord&)>;

void write_log(const fs::path& folder, const RunRecord& run = some_run(), int64_t changed = 0,
               const Change& change = {}) {
  RunLogWriter writer(folder);
  writer.write(run);
  writer.write(StepRecord{.step = 0, .is_start = true, .values = std::string(48, '7')});
  for (int64_t step = 1; step <= 5; ++step) {
    StepRecord record = some_step(step);
    if (step == changed) change(record);
    writer.write(record);
  }
}

RunComparison compared(const RunRecord& other = some_run(), int64_t changed = 0, const Change& change = {},
                       const ComparisonOptions& options = {}) {
  const TemporaryFolder folder;
  write_log(folder / "a");
  write_log(folder / "b", other, changed, change);
  return compare_runs(folder / "a", folder / "b", options);
}

}  // namespace

TEST_CASE("What is written is read again, with infinite values and NaN") {
  const TemporaryFolder folder;
  write_log(folder / "log", some_run(), 2, [](StepRecord& step) {
    step.losses = {std::numeric_limits<double>::quiet_NaN(), std::nullopt};
    step.gradient_norm = std::numeric_limits<double>::infinity();
    step.loss_scale = 4096;
    step.is_skipped = true;
    step.written = {1};
  });
  RunLogReader log(folder / "log");
  CHECK(to_json(log.run()) == to_json(some_run()));
  CHECK(log.run().seed == std::numeric_limits<uint64_t>::max());
  CHECK(to_line(log.step(3)) == to_line(some_step(3)));
  const StepRecord second = log.step(2);
  CHECK((second.losses.size() == 2 && std::isnan(*second.losses[0]) && !second.losses[1]));
  CHECK((std::isinf(second.gradient_norm) && second.loss_scale == 4096 && second.is_skipped));
  CHECK(second.written == std::vector<int64_t>{1});
  CHECK((log.starts() == std::vector<int64_t>{0} && log.start(0).values == std::string(48, '7')));
}

TEST_CASE("The settings are those of the resolved configuration, with their origins") {
  const Config config = parse_config(
      "{\"train_batch_size\": 4, // all\n\"optimizer\": {\"type\": \"AdamW\", \"params\": {\"betas\": [0.9, "
      "0.95]}},\n"
      "\"csv_monitor\": {\"enabled\": true, \"job_name\": \"a // b, c\"}}",
      "test", 2);
  const std::vector<LoggedSetting> settings = settings_of(config.resolved);
  const auto value_of = [&](const std::string& key) {
    for (const LoggedSetting& setting : settings)
      if (setting.key == key) return setting.value + " " + setting.from;
    return std::string("absent");
  };
  CHECK(value_of("train_batch_size") == "4 line 1");
  CHECK(value_of("optimizer.params.betas") == "[0.9, 0.95] line 2");
  CHECK(value_of("csv_monitor.job_name") == "\"a // b, c\" line 3");
  CHECK(value_of("gradient_clipping") == "1 default");
  CHECK(settings_of("").empty());
}

TEST_CASE("A step that is there twice counts as it was written last, and lines cut off are removed") {
  const TemporaryFolder folder;
  write_log(folder / "a");
  write_log(folder / "b", some_run(), 4, [](StepRecord& step) { step.lr = 7; });
  CHECK(compare_runs(folder / "a", folder / "b").parting->step == 4);
  std::ofstream(folder / "b/steps.jsonl", std::ios::app) << R"({"step":6,"loss":1)";
  {
    const RunComparison cut = compare_runs(folder / "a", folder / "b");
    CHECK((cut.parting->step == 4 && cut.last_step == 5));
    CHECK_THAT(to_text(cut, "a", "b"), Contains("the last line of B is cut off"));
  }
  RunLogWriter resumed(folder / "b");
  resumed.write(some_step(4));
  RunLogReader log(folder / "b");
  CHECK((!log.is_cut_off() && log.steps() == std::vector<int64_t>{1, 2, 3, 4, 5}));
  CHECK(!compare_runs(folder / "a", folder / "b").parting);
}

TEST_CASE("Events are read in their order; an engine began after the step before its first in the log") {
  const TemporaryFolder folder;
  RunRecord run = some_run();
  run.states = {.parameters = 9, .value = 2, .gradient = 4, .master = 4, .moments = 8};
  {
    RunLogWriter writer(folder / "log");
    writer.write(run);
    writer.write(RunEvent{.time = "2026-03-01T12:00:00Z", .text = "2 ranks on worker-0"});
    for (int64_t step = 4; step <= 6; ++step) writer.write(some_step(step));
    writer.write(RunEvent{.step = 6, .kind = RunEventKind::ended});
    writer.write(RunEvent{});
  }
  append_event(folder / "log", {.step = 6, .kind = RunEventKind::failed, .text = "rank 1: \xff\n\"quoted\""});
  append_event(folder / "none", {});
  CHECK(!fs::exists(folder / "none"));
  RunLogReader log(folder / "log");
  CHECK(to_json(log.run()) == to_json(run));
  CHECK(log.steps() == std::vector<int64_t>{4, 5, 6});
  const std::vector<RunEvent> events = log.events();
  REQUIRE(events.size() == 4);
  CHECK((events[0].kind == RunEventKind::began && events[0].step == 3 &&
         events[0].text == "2 ranks on worker-0"));
  CHECK((events[1].kind == RunEventKind::ended && events[1].step == 6));
  CHECK((events[2].kind == RunEventKind::began && events[2].step == 0));
  CHECK((events[3].kind == RunEventKind::failed && events[3].step == 6));
  CHECK(events[3].text == "rank 1: \xef\xbf\xbd\n\"quoted\"");
  CHECK(!compare_runs(folder / "log", folder / "log").parting);
}

TEST_CASE("Logs that cannot be compared are errors that say why") {
  const TemporaryFolder folder;
  write_log(folder / "a");
  write_log(folder / "b");
  const auto error = [&] { return user_error([&] { compare_runs(folder / "a", folder / "b"); }); };
  CHECK(error() == "no error");
  CHECK_THAT(user_error([&] { compare_runs(folder / "a", folder / "none"); }),
             Contains("there is no such folder"));
  const auto replace = [&](const char* file, const std::string& old, const std::string& text) {
    std::string content = read_file(folder / "b" / file);
    REQUIRE(content.find(old) != std::string::npos);
    content.replace(content.find(old), old.size(), text);
    folder.write(std::string("b/") + file, content);
  };
  replace("steps.jsonl", "\"grad_norm\":0.1", "\"grad_norm\":{}");
  CHECK_THAT(error(), Contains("steps.jsonl, line 2 is damaged"));
  replace("steps.jsonl", "{\"step\":2", "x\"step\":2");
  CHECK_THAT(error(), Contains("steps.jsonl, line 3 is damaged: it is no line of a run log"));
  folder.write("b/steps.jsonl", "");
  CHECK_THAT(error(), Contains("the log has no steps yet"));
  folder.write("b/steps.jsonl", to_line(some_step(9)));
  CHECK_THAT(error(), Contains("no step in common: A has 1 to 5, B 9 to 9"));
  replace("run.json", "\"format\": 1", "\"format\": 2");
  CHECK_THAT(error(), Contains("format 2 is later than the 1"));
  replace("run.json", "\"format\"", "\"form\"");
  CHECK_THAT(error(), Contains("run.json: no description of a run") && Contains("format"));
  folder.write("b/run.json", "{");
  CHECK_THAT(error(), Contains("expected a JSON object"));
  fs::remove(folder / "b/run.json");
  CHECK_THAT(error(), Contains("run.json cannot be read"));

  RunRecord other = some_run();
  other.parameters[1].shape = {4};
  CHECK_THAT(user_error([&] { compared(other); }),
             Contains("different models") && Contains("a.bias [3] | a.bias [4]"));
  other.parameters = {some_run().parameters[0]};
  CHECK_THAT(user_error([&] { compared(other); }), Contains("3 parameters | 1"));
}

TEST_CASE("A step parts by what is its cause first") {
  CHECK(!compared().parting);
  const auto what = [](const Change& change) { return *compared(some_run(), 3, change).parting; };
  const PartingStep loss = what([](StepRecord& step) {
    step.losses[1] = 9;
    step.gradients[20] = 'f';
  });
  CHECK((loss.step == 3 && loss.what == Parting::loss && loss.rank == 1 && loss.parameter == "a.bias"));
  CHECK(loss.facts.size() == 2);
  const PartingStep gradients = what([](StepRecord& step) {
    step.gradients[5] = step.gradients[20] = step.values[2] = 'f';
    step.gradient_norm = 7;
  });
  CHECK((gradients.what == Parting::gradients && gradients.parameter == "a.weight" && !gradients.rank));
  CHECK_THAT(gradients.facts[0], Contains("2 of 2 parameters, the first: a.weight"));
  CHECK(what([](StepRecord& step) { step.values[31] = 'f'; }).what == Parting::values);
  CHECK(what([](StepRecord& step) { step.values[31] = 'f'; }).parameter == "a.bias");
  CHECK(what([](StepRecord& step) { step.lr = 1, step.values[31] = 'f'; }).what == Parting::learning_rate);
  CHECK(what([](StepRecord& step) { step.written = {1}, step.losses[0] = 7; }).what == Parting::written);
  CHECK(what([](StepRecord& step) { step.gradient_norm = 1; }).what == Parting::norm);
  CHECK(what([](StepRecord& step) { step.is_skipped = true; }).what == Parting::loss_scale);
}

TEST_CASE("Without hashes losses and norms are compared bit by bit, and a note says what is missing") {
  RunRecord other = some_run();
  other.has_hashes = false;
  const auto drop = [](StepRecord& step) {
    step.gradients.clear(), step.values.clear();
    step.gradient_norm = std::nextafter(0.1, 1.0);
  };
  const RunComparison comparison = compared(other, 4, drop);
  CHECK(
      (!comparison.has_hashes && comparison.parting->step == 4 && comparison.parting->what == Parting::norm));
  CHECK_THAT(to_text(comparison, "a", "b"),
             Contains("B has no hashes") && Contains("zerorun.run_log.hashes"));
}

TEST_CASE("Where bits cannot be equal, losses and norms are compared within a tolerance") {
  RunRecord other = some_run();
  other.world_size = other.mesh.data = 4;
  const auto change = [](StepRecord& step) {
    step.losses = {1, 2, 3, 4};
    step.loss = *step.loss * (1 + 5e-6);
    step.gradient_norm *= 1 + 5e-5;
    step.gradients[0] = 'f';
  };
  const RunComparison close = compared(other, 3, change);
  CHECK((!close.parting && close.tolerance == 1e-5 && close.reasons.size() == 1));
  CHECK_THAT(to_text(close, "a", "b"), Contains("bits cannot be equal") && Contains("data ranks 2 | 4") &&
                                           Contains("within a relative tolerance of 1e-05") &&
                                           Contains("no difference"));
  const RunComparison apart = compared(other, 3, change, {.tolerance = 1e-6});
  CHECK(
      (apart.parting->step == 3 && apart.parting->what == Parting::loss && apart.parting->facts.size() == 2));

  const auto reason = [](const std::function<void(RunRecord&)>& differ) {
    const TemporaryFolder folder;
    RunRecord a = some_run();
    a.accumulation = 2;
    RunRecord b = a;
    differ(b);
    write_log(folder / "a", a);
    write_log(folder / "b", b);
    const RunComparison comparison = compare_runs(folder / "a", folder / "b");
    return comparison.reasons.empty() ? std::string("none") : comparison.reasons.front();
  };
  CHECK(reason([](RunRecord&) {}) == "none");
  CHECK(reason([](RunRecord& run) { run.transport = "messages"; }) == "none");
  CHECK_THAT(reason([](RunRecord& run) { run.sums_micro_steps = true; }),
             Contains("once per step | in each micro-step"));
  CHECK_THAT(reason([](RunRecord& run) { run.precision = "bf16"; }), Contains("fp32 | bf16"));
  CHECK_THAT(reason([](RunRecord& run) { run.mesh.tensor = 2; }), Contains("tensor ranks 1 | 2"));
  CHECK_THAT(reason([](RunRecord& run) { run.libtorch = "2.11.0"; }), Contains("kernels may differ"));
  CHECK(default_tolerance("fp32", "bf16") == 1e-2);
}

TEST_CASE("Settings that change results are listed, with where they are from") {
  RunRecord other = some_run();
  other.settings = {{"optimizer.params.lr", "0.002", "line 4"},
                    {"zero_optimization.stage", "3", "line 5"},
                    {"gradient_clipping", "0.5", "line 6"}};
  other.seed = 1;
  const RunComparison comparison = compared(other);
  REQUIRE(comparison.differences.size() == 3);
  CHECK(comparison.differences[0] == "optimizer.params.lr: 0.001 (line 3) | 0.002 (line 4)");
  CHECK(comparison.differences[1] == "gradient_clipping: (not set) | 0.5 (line 6)");
  CHECK_THAT(comparison.differences[2], Contains("seed"));
  CHECK(comparison.reasons.empty());
}

}  // namespace zerorun::testing
