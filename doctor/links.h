// What the ranks of zerorun_probe measured of each other, how it travels to `zerorun doctor` as JSON, and
// what is said about it. Pure; plain values.
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <string>
#include <utility>
#include <vector>

#include "doctor/finding.h"

namespace zerorun {

/// What zerorun_probe writes in front of its line of JSON.
inline constexpr char kProbeMark[] = "zerorun_probe: ";

/// A rank whose links to the others were measured: one on each host, or all if there is one host.
struct Member {
  int rank = 0;
  std::string host;
  double clock = 0;  // its host's time of day, in seconds, when all members were asked at once
  Findings report;   // about its host; empty if another member reports about it
};

struct Link {
  int first = 0, second = 0;  // numbers of members
  double latency_us = 0;      // one way, of 4 bytes
  double bandwidth = 0;       // bytes per second, of the slower direction
  std::string error = {};     // why it could not be measured; empty if it was
};

struct JobReport {
  int world_size = 1;
  std::string transport;     // "shared memory", "Gloo", "NCCL 2.28.3"
  std::string failure = {};  // of the collectives: no answer, or a wrong sum; empty if they work
  double all_reduce_us = 0;  // of 4 bytes; 0: collectives were not tried, since a link is broken
  // Of a reduce-scatter and an all-gather, as ZeRO uses them: bytes that each rank sends, per second.
  double bus_bandwidth = 0;
  std::vector<Member> members;
  std::vector<Link> links;
};

/// All pairs of `members` members, in rounds in which nobody has two partners.
std::vector<std::vector<std::pair<int, int>>> rounds_of_pairs(int members);

nlohmann::ordered_json to_json(const JobReport& report);
/// Throws nlohmann::json::exception if `json` is not what to_json() returns.
JobReport job_report_from_json(const nlohmann::ordered_json& json);

nlohmann::ordered_json to_json(const Link& link);
Link link_from_json(const nlohmann::ordered_json& json);

/// About the job as a whole; names the slowest link.
Findings judge_job(const JobReport& report);

}  // namespace zerorun
