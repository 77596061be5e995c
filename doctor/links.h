// The links and collectives that the ranks of zerorun_probe have measured: as plain values, as the JSON in
// which `zerorun doctor` receives them, and as findings. All functions are pure.
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <string>
#include <utility>
#include <vector>

#include "doctor/finding.h"

namespace zerorun::doctor {

/// zerorun_probe prints this in front of its line of JSON.
inline constexpr char kProbeMark[] = "zerorun_probe: ";

/// A rank whose links to the other members were measured. One rank of each host is a member, or every rank if
/// there is only one host.
struct Member {
  int rank = 0;
  std::string host;
  double clock = 0;  // its host's time of day in seconds; all members read theirs at almost the same moment
  Findings report;   // about its host; empty if another member reports about it
};

struct Link {
  int first = 0, second = 0;  // indices into JobReport::members
  double latency_us = 0;      // of a message of 4 bytes, one way
  double bandwidth = 0;       // bytes per second, of the slower direction
  std::string error = {};     // why the link could not be measured; empty if it was
};

struct JobReport {
  int world_size = 1;
  std::string transport;     // "shared memory", "Gloo", "NCCL 2.28.3"
  std::string failure = {};  // why collectives failed (no answer, a wrong sum); empty if none failed
  double all_reduce_us = 0;  // of 4 bytes; 0: collectives were not tried, since a link is broken
  // Bytes per second that each rank sends in a reduce-scatter and an all-gather, the collectives that ZeRO
  // uses.
  double bus_bandwidth = 0;
  std::vector<Member> members;
  std::vector<Link> links;
};

/// All pairs of `members` members, divided into rounds. No member is in two pairs of one round.
std::vector<std::vector<std::pair<int, int>>> rounds_of_pairs(int members);

nlohmann::ordered_json to_json(const JobReport& report);
/// Throws nlohmann::json::exception if `json` is not what to_json() returns.
JobReport job_report_from_json(const nlohmann::ordered_json& json);

nlohmann::ordered_json to_json(const Link& link);
Link link_from_json(const nlohmann::ordered_json& json);

/// Findings about collectives, links and clocks. One of them names the slowest link.
Findings judge_job(const JobReport& report);

}  // namespace zerorun::doctor
