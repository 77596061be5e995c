#include "doctor/links.h"

#include <algorithm>
#include <array>
#include <cstdio>
#include <nlohmann/json.hpp>
#include <set>

namespace zerorun::doctor {
namespace {

using Json = nlohmann::ordered_json;

constexpr size_t kMostLinesOfLinks = 28;  // eight hosts have 28 links
constexpr double kGigabit = 1e9 / 8;      // bytes per second
constexpr double kClockTolerance = 1;     // seconds

template <typename... Values>
std::string format(const char* pattern, Values... values) {
  std::array<char, 128> text{};
  std::snprintf(text.data(), text.size(), pattern, values...);
  return text.data();
}

std::string speed_text(double bytes_per_second) {
  return bytes_per_second >= 1e9 ? format("%.2f GB/s", bytes_per_second / 1e9)
                                 : format("%.1f MB/s", bytes_per_second / 1e6);
}

std::string name_of(const JobReport& report, int member) {
  const Member& who = report.members.at(member);
  const auto same_host = std::ranges::count(report.members, who.host, &Member::host);
  return same_host > 1 ? who.host + " (rank " + std::to_string(who.rank) + ")" : who.host;
}

std::string name_of(const JobReport& report, const Link& link) {
  return name_of(report, link.first) + " - " + name_of(report, link.second);
}

std::string numbers_of(const Link& link) {
  return format("%.0f us, ", link.latency_us) + speed_text(link.bandwidth) + " over TCP";
}

bool on_several_hosts(const JobReport& report) {
  return std::ranges::any_of(report.members,
                             [&](const Member& one) { return one.host != report.members.front().host; });
}

Finding judge_slowest(const JobReport& report, const std::vector<Link>& by_speed) {
  const Link& slowest = by_speed.front();
  const double median = by_speed[by_speed.size() / 2].bandwidth;
  const std::string text = name_of(report, slowest) + ": " + numbers_of(slowest);
  if (by_speed.size() > 2 && slowest.bandwidth < median / 2) {
    return {Verdict::note, "slowest link", text + ", where the median is " + speed_text(median),
            "look at the cable, card and switch port of the two hosts"};
  }
  if (on_several_hosts(report) && slowest.bandwidth < kGigabit / 2) {
    return {Verdict::note, "slowest link", text,
            "this is slower than gigabit Ethernet: GLOO_SOCKET_IFNAME names a faster interface"};
  }
  return {Verdict::ok, "slowest link", text};
}

void judge_links(const JobReport& report, Findings& findings) {
  std::vector<Link> measured;
  for (const Link& link : report.links) {
    if (link.error.empty()) {
      measured.push_back(link);
    } else {
      findings.push_back({Verdict::problem, "link", name_of(report, link) + ": " + link.error,
                          "look at firewalls between the hosts and at their interfaces' MTU"});
    }
  }
  if (measured.empty()) return;
  const bool all_shown = measured.size() <= kMostLinesOfLinks;
  for (const Link& link : measured) {
    if (all_shown) findings.push_back({Verdict::ok, "link", name_of(report, link) + ": " + numbers_of(link)});
  }
  if (!all_shown)
    findings.push_back(
        {Verdict::ok, "links", std::to_string(measured.size()) + " measured (--json has all)"});
  std::ranges::sort(measured, {}, &Link::bandwidth);
  findings.push_back(judge_slowest(report, measured));
}

Findings judge_collectives(const JobReport& report, const std::string& what) {
  if (!report.failure.empty()) {
    return {{Verdict::problem, "collectives", what + ": " + report.failure,
             "run `zerorun doctor` on fewer hosts to find which one it is"}};
  }
  if (report.all_reduce_us == 0)
    return {{Verdict::note, "collectives", what + ": not tried, since a link does not work"}};
  return {{Verdict::ok, "collectives", what + ", the sums are right"},
          {Verdict::ok, "all-reduce", format("%.0f us for 4 bytes", report.all_reduce_us)},
          {Verdict::ok, "bandwidth",
           speed_text(report.bus_bandwidth) + " sent by each rank in reduce-scatter and all-gather"}};
}

Finding judge_clocks(const JobReport& report) {
  const auto [least, most] = std::ranges::minmax_element(report.members, {}, &Member::clock);
  const double apart = most->clock - least->clock;
  if (apart < kClockTolerance) return {Verdict::ok, "clocks", "less than a second apart"};
  return {Verdict::note, "clocks", most->host + format(" is %.0f s ahead of ", apart) + least->host,
          "run chrony or systemd-timesyncd on all hosts, or their logs and files cannot be compared"};
}

}  // namespace

std::vector<std::vector<std::pair<int, int>>> rounds_of_pairs(int members) {
  // A round-robin tournament: member 0 keeps its place, the other members move by one place each round. If
  // the number of members is odd, one place has no member, and the member opposite to it pauses for the
  // round.
  const int places = members + members % 2;
  std::vector<std::vector<std::pair<int, int>>> rounds;
  for (int round = 0; round < places - 1; ++round) {
    const auto at = [&](int place) { return place == 0 ? 0 : 1 + (place - 1 + round) % (places - 1); };
    std::vector<std::pair<int, int>>& pairs = rounds.emplace_back();
    for (int place = 0; place < places / 2; ++place) {
      const auto [low, high] = std::minmax({at(place), at(places - 1 - place)});
      if (high < members) pairs.emplace_back(low, high);
    }
  }
  return rounds;
}

Json to_json(const Link& link) {
  Json json = {{"first", link.first}, {"second", link.second}};
  if (!link.error.empty()) {
    json["error"] = link.error;
  } else {
    json["latency_us"] = link.latency_us;
    json["bytes_per_second"] = link.bandwidth;
  }
  return json;
}

Link link_from_json(const Json& json) {
  return {.first = json.at("first"),
          .second = json.at("second"),
          .latency_us = json.value("latency_us", 0.0),
          .bandwidth = json.value("bytes_per_second", 0.0),
          .error = json.value("error", "")};
}

Json to_json(const JobReport& report) {
  Json members = Json::array();
  for (const Member& member : report.members) {
    members.push_back({{"rank", member.rank},
                       {"host", member.host},
                       {"clock", member.clock},
                       {"findings", to_json(member.report)}});
  }
  Json links = Json::array();
  for (const Link& link : report.links) links.push_back(to_json(link));
  return {{"world_size", report.world_size},
          {"transport", report.transport},
          {"failure", report.failure},
          {"all_reduce_us", report.all_reduce_us},
          {"bus_bytes_per_second", report.bus_bandwidth},
          {"members", members},
          {"links", links}};
}

JobReport job_report_from_json(const Json& json) {
  JobReport report = {.world_size = json.at("world_size"),
                      .transport = json.at("transport"),
                      .failure = json.at("failure"),
                      .all_reduce_us = json.at("all_reduce_us"),
                      .bus_bandwidth = json.at("bus_bytes_per_second"),
                      .members = {},
                      .links = {}};
  for (const Json& member : json.at("members")) {
    report.members.push_back({.rank = member.at("rank"),
                              .host = member.at("host"),
                              .clock = member.at("clock"),
                              .report = findings_from_json(member.at("findings"))});
  }
  for (const Json& link : json.at("links")) report.links.push_back(link_from_json(link));
  return report;
}

Findings judge_job(const JobReport& report) {
  std::set<std::string> hosts;
  for (const Member& member : report.members) hosts.insert(member.host);
  const std::string counts = std::to_string(report.world_size) +
                             (report.world_size == 1 ? " rank" : " ranks") + " on " +
                             std::to_string(hosts.size()) + (hosts.size() == 1 ? " host" : " hosts");
  if (report.world_size == 1) {
    if (report.transport.starts_with("NCCL")) {
      return {{Verdict::note, "collectives",
               counts + " uses its GPU and has loaded " + report.transport + ": no collective was tried",
               "--device cpu --num_gpus 2 tries them on the CPU"}};
    }
    return {
        {Verdict::note, "collectives", counts + ": none was tried", "start two ranks or more: --num_gpus 2"}};
  }
  Findings findings = judge_collectives(report, counts + " over " + report.transport);
  judge_links(report, findings);
  if (hosts.size() > 1) findings.push_back(judge_clocks(report));
  return findings;
}

}  // namespace zerorun::doctor
