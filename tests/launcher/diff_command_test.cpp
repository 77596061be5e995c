// Tests of `zerorun diff` as a program: what it prints, and its exit codes. tests/monitor/ has the
// comparisons.
#include "monitor/run_log_writer.h"
#include "tests/launcher/command_folder.h"

namespace zerorun::testing {
namespace {

using Catch::Matchers::Contains;

void write_log(const CommandFolder& folder, const std::string& name, double norm) {
  RunLogWriter writer(folder / name);
  writer.write(RunRecord{.device = "cpu",
                         .precision = "fp32",
                         .optimizer = "AdamW",
                         .mesh = {.data = 1},
                         .has_hashes = true,
                         .parameters = {{"h.0.weight", {2}}}});
  for (int64_t step = 1; step <= 3; ++step)
    writer.write(StepRecord{.step = step,
                            .gradient_norm = norm,
                            .gradients = std::string(16, step == 3 && norm > 1 ? '1' : '0'),
                            .values = std::string(16, '0')});
}

}  // namespace

TEST_CASE("diff says whether two runs part, and where") {
  const CommandFolder folder;
  write_log(folder, "a", 1);
  write_log(folder, "b", 1);
  const Outcome same = folder.run("diff a b");
  CHECK((same.exit_code == 0 && same.err.empty()));
  CHECK_THAT(same.out, Contains("A  a: 1 rank, fp32, AdamW") && Contains("steps 1 to 3, bit by bit") &&
                           Contains("no difference"));

  write_log(folder, "c", 2);
  const Outcome parts = folder.run("diff a c");
  CHECK(parts.exit_code == 1);
  CHECK_THAT(parts.out, Contains("they part at step 1") && Contains("norm of the gradients: 1 | 2"));
}

TEST_CASE("diff refuses what it cannot compare with 2, in one line") {
  const CommandFolder folder;
  write_log(folder, "a", 1);
  for (const auto& [arguments, message] : std::initializer_list<std::pair<const char*, const char*>>{
           {"diff a none", "there is no such folder"},
           {"diff a", "RUNS"},
           {"diff a a a", "diff --help"},
           {"diff a a --tolerance x", "tolerance"},
           {"diff a a --tolerance -1", "--tolerance: expected a number of at least 0"}}) {
    INFO(arguments);
    const Outcome outcome = folder.run(arguments);
    CHECK(outcome.exit_code == 2);
    CHECK_THAT(outcome.err, Contains(message));
    CHECK(outcome.out.empty());
  }
  const Outcome help = folder.run("diff --help");
  CHECK(help.exit_code == 0);
  CHECK_THAT(help.out, Contains("Exit code: 0 no difference; 1 they part; 2"));
}

}  // namespace zerorun::testing
