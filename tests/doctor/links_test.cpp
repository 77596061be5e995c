// Tests the rounds in which pairs of ranks measure their links, the JSON of a job's report, and the findings
// about links and collectives.
#include "doctor/links.h"

#include <nlohmann/json.hpp>
#include <set>

#include "tests/doctor/findings.h"

using Catch::Matchers::Contains;
using Catch::Matchers::StartsWith;
using zerorun::testing::lines_about;
using namespace zerorun::doctor;

namespace {

JobReport three_hosts() {
  JobReport report;
  report.world_size = 6;
  report.transport = "Gloo";
  report.all_reduce_us = 41.4;
  report.bus_bandwidth = 1.25e9;
  report.members = {{.rank = 0, .host = "a", .clock = 1000.25, .report = {}},
                    {.rank = 2, .host = "b", .clock = 1000.5, .report = {}},
                    {.rank = 4, .host = "c", .clock = 1000, .report = {}}};
  report.links = {{.first = 0, .second = 1, .latency_us = 20, .bandwidth = 1.2e9},
                  {.first = 0, .second = 2, .latency_us = 21, .bandwidth = 1.1e9},
                  {.first = 1, .second = 2, .latency_us = 22, .bandwidth = 1.0e9}};
  return report;
}

}  // namespace

TEST_CASE("links: every pair occurs once, and no member has two partners in a round") {
  for (int members = 0; members <= 33; ++members) {
    CAPTURE(members);
    std::set<std::pair<int, int>> pairs;
    size_t count = 0;
    const auto rounds = rounds_of_pairs(members);
    for (const auto& round : rounds) {
      std::set<int> busy;
      for (const auto& [first, second] : round) {
        CHECK((0 <= first && first < second && second < members));
        CHECK(busy.insert(first).second);
        CHECK(busy.insert(second).second);
        pairs.emplace(first, second);
        ++count;
      }
    }
    CHECK(count == static_cast<size_t>(members) * std::max(0, members - 1) / 2);
    CHECK(pairs.size() == count);
    CHECK(static_cast<int>(rounds.size()) <= members);
  }
}

TEST_CASE("links: a report is the same after it was written as JSON and read") {
  JobReport report = three_hosts();
  report.members[1].report = {{Verdict::note, "disk", "little", "free some"}};
  report.links[2].error = "did not end";
  report.failure = "7";
  const JobReport again = job_report_from_json(nlohmann::ordered_json::parse(to_json(report).dump()));
  CHECK(to_json(again) == to_json(report));
  CHECK(again.members[1].report[0].verdict == Verdict::note);
  CHECK(again.links[2].error == "did not end");
  CHECK(again.links[0].bandwidth == 1.2e9);
  CHECK_THROWS_AS(job_report_from_json(nlohmann::ordered_json::object()), nlohmann::json::exception);
}

TEST_CASE("links: the slowest link is named and compared with the others") {
  JobReport report = three_hosts();
  CHECK(to_text(judge_job(report)) ==
        "  ok       collectives      6 ranks on 3 hosts over Gloo, the sums are right\n"
        "  ok       all-reduce       41 us for 4 bytes\n"
        "  ok       bandwidth        1.25 GB/s sent by each rank in reduce-scatter and all-gather\n"
        "  ok       link             a - b: 20 us, 1.20 GB/s over TCP\n"
        "  ok       link             a - c: 21 us, 1.10 GB/s over TCP\n"
        "  ok       link             b - c: 22 us, 1.00 GB/s over TCP\n"
        "  ok       slowest link     b - c: 22 us, 1.00 GB/s over TCP\n"
        "  ok       clocks           less than a second apart\n");
  report.links[0].bandwidth = 0.4e9;
  CHECK_THAT(
      lines_about(judge_job(report), "slowest link"),
      StartsWith("note ") && Contains("a - b: 20 us, 400.0 MB/s over TCP, where the median is 1.00 GB/s"));
  for (Link& link : report.links) link.bandwidth = 12e6;
  CHECK_THAT(lines_about(judge_job(report), "slowest link"), StartsWith("note ") && Contains("gigabit"));
  for (Member& member : report.members) member.host = "a";
  CHECK_THAT(lines_about(judge_job(report), "slowest link"),
             StartsWith("ok ") && Contains("a (rank 0) - a (rank 2)"));
}

TEST_CASE("links: findings about a broken link, a wrong sum, clocks, and a single rank") {
  JobReport report = three_hosts();
  report.links[1].error = "broadcast of a transfer of 1048576 bytes did not end within 20 s";
  report.failure = "the all-reduce of 1 to 6 gave 20 on rank 3";
  report.members[1].clock += 90;
  const auto findings = judge_job(report);
  CHECK_THAT(lines_about(findings, "link"),
             StartsWith("problem ") && Contains("a - c: broadcast of a transfer") && Contains("MTU"));
  CHECK_THAT(lines_about(findings, "collectives"), StartsWith("problem ") && Contains("gave 20 on rank 3"));
  CHECK_THAT(lines_about(findings, "clocks"),
             StartsWith("note ") && Contains("b is 90 s ahead of c") && Contains("chrony"));
  report.failure.clear();
  report.all_reduce_us = 0;
  CHECK_THAT(lines_about(judge_job(report), "collectives"), StartsWith("note ") && Contains("not tried"));
  report.world_size = 1;
  CHECK_THAT(lines_about(judge_job(report), "collectives"), StartsWith("note ") && Contains("1 rank"));
}

TEST_CASE("links: with many hosts only the slowest link is printed") {
  JobReport report = three_hosts();
  report.members.resize(9, {.rank = 0, .host = "z", .clock = 1000, .report = {}});
  report.links.clear();
  for (const auto& round : rounds_of_pairs(9)) {
    for (const auto& [first, second] : round)
      report.links.push_back({.first = first, .second = second, .latency_us = 20, .bandwidth = 1e9});
  }
  const auto findings = judge_job(report);
  CHECK(lines_about(findings, "link").empty());
  CHECK_THAT(lines_about(findings, "links"), Contains("36 measured"));
  CHECK_FALSE(lines_about(findings, "slowest link").empty());
}
