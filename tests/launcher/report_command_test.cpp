// Tests of `zerorun report` as a program: what it prints, and its exit codes. tests/report/ opens its pages.
#include "monitor/run_log_writer.h"
#include "report/page_parts.h"
#include "tests/launcher/command_folder.h"

namespace zerorun::testing {
namespace {

using Catch::Matchers::Contains;

constexpr char kHostile[] = "</script><script>alert(1)</script>";

void write_hostile_log(const CommandFolder& folder, const std::string& name) {
  RunLogWriter writer(folder / name);
  writer.write(RunRecord{.mesh = {.data = 1},
                         .hosts = {kHostile},
                         .settings = {{kHostile, "1", kHostile}},
                         .parameters = {{kHostile, {2}}}});
  writer.write(RunEvent{.kind = RunEventKind::failed, .text = kHostile});
  writer.write(StepRecord{.step = 1, .bytes = {{kHostile, 1}}, .elements = {{kHostile, 1}}});
}

}  // namespace

TEST_CASE("report writes a page in which the texts of a log are no markup") {
  if (kDygraphsScript.empty()) {
    WARN("built without dygraphs");
    return;
  }
  const CommandFolder folder;
  write_hostile_log(folder, "a");
  write_hostile_log(folder, "b</script>");
  const Outcome one = folder.run("report a");
  CHECK((one.exit_code == 0 && one.err.empty()));
  CHECK_THAT(one.out, Contains("report: report.html, "));
  const std::string page = read_file(folder / "report.html");
  CHECK_THAT(page, Contains("default-src 'none'") && Contains("\\u003c/script>\\u003cscript>alert(1)") &&
                       !Contains(kHostile));

  const Outcome two = folder.run("report a 'b</script>' --output ab.html");
  CHECK((two.exit_code == 0 && two.err.empty()));
  CHECK_THAT(read_file(folder / "ab.html"), Contains("b\\u003c/script>") && !Contains("b</script>"));
}

TEST_CASE("report refuses what it cannot show with 2, in one line") {
  const CommandFolder folder;
  write_hostile_log(folder, "a");
  for (const auto& [arguments, message] : std::initializer_list<std::pair<const char*, const char*>>{
           {"report none", "there is no such folder"},
           {"report", "RUNS"},
           {"report a a a", "report --help"},
           {"report a --output no/such/folder.html", "(--output)"}}) {
    INFO(arguments);
    const Outcome outcome = folder.run(arguments);
    CHECK(outcome.exit_code == 2);
    CHECK_THAT(outcome.err, Contains(message));
    CHECK(outcome.out.empty());
  }
  const Outcome help = folder.run("report --help");
  CHECK(help.exit_code == 0);
  CHECK_THAT(help.out, Contains("writes report.html"));
}

}  // namespace zerorun::testing
