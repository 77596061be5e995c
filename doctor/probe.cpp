// zerorun_probe: the program that `zerorun doctor` starts as the ranks of a job. The ranks connect like those
// of every program, and measure the links between hosts, pair by pair. If all links work, they try the
// collectives. Rank 0 prints the results as one line of JSON.
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

// dlopen() with RTLD_NOLOAD finds the NCCL that is in use
#include <dlfcn.h>
#include <unistd.h>

#include <array>

#include "base/error.h"
#include "base/program.h"
#include "comm/connect/rendezvous.h"
#include "comm/gloo/gloo_communicator.h"
#include "comm/meeting/exchange.h"
#include "comm/meeting/store.h"
#include "doctor/host_report.h"
#include "doctor/links.h"
#include "doctor/probe_measure.h"

namespace {

using nlohmann::ordered_json;
using zerorun::Deadline;
using zerorun::Environment;
using zerorun::StorePointer;
using zerorun::doctor::JobReport;
using zerorun::doctor::Link;

// A stalled link must not use up the whole deadline.
constexpr std::chrono::milliseconds kLongestForLink = std::chrono::seconds(20);

std::string hostname() {
  std::array<char, 256> name{};
  return ::gethostname(name.data(), name.size() - 1) == 0 ? name.data() : "localhost";
}

std::string nccl_in_use() {
  int version = 0;
  void* library = ::dlopen("libnccl.so.2", RTLD_NOLOAD | RTLD_LAZY);
  auto* ask = library ? reinterpret_cast<int (*)(int*)>(::dlsym(library, "ncclGetVersion")) : nullptr;
  if (!ask || ask(&version) != 0) return "NCCL";
  return "NCCL " + std::to_string(version / 10000) + "." + std::to_string(version / 100 % 100) + "." +
         std::to_string(version % 100);
}

std::string transport_of(const zerorun::Communicator& communicator) {
  if (!communicator.device().location().is_cpu()) return nccl_in_use();
  return communicator.transport();
}

double time_of_day() {
  return std::chrono::duration<double>(std::chrono::system_clock::now().time_since_epoch()).count();
}

// Folders and variables may have names that are not UTF-8.
std::string text_of(const ordered_json& value) {
  return value.dump(-1, ' ', false, ordered_json::error_handler_t::replace);
}

// Returns every rank's `mine`, by rank. Waits until all ranks have called it.
std::vector<ordered_json> exchange(const StorePointer& store, const Environment& environment,
                                   const std::string& name, const ordered_json& mine,
                                   const Deadline& deadline) {
  std::vector<ordered_json> all;
  for (const std::string& word : zerorun::exchange_words(
           *store, name, environment.rank, environment.world_size, text_of(mine), deadline, "zerorun doctor"))
    all.push_back(ordered_json::parse(word));
  return all;
}

// One rank of each host, or all ranks if there is one host.
std::vector<zerorun::doctor::Member> choose_members(const StorePointer& store,
                                                    const Environment& environment) {
  const Deadline deadline(environment.timeout);
  ordered_json mine = {{"host", hostname()}, {"local_rank", environment.local_rank}};
  if (environment.local_rank == 0)
    mine["report"] =
        to_json(zerorun::doctor::examine_host(environment.local_world_size, environment.world_size));
  const auto all = exchange(store, environment, "member", mine, deadline);
  const auto clocks = exchange(store, environment, "clock", time_of_day(), deadline);
  const auto is_first = [](const ordered_json& rank) { return rank.at("local_rank") == 0; };
  const bool several_hosts = std::ranges::count_if(all, is_first) > 1;
  std::vector<zerorun::doctor::Member> members;
  for (int rank = 0; rank < environment.world_size; ++rank) {
    if (several_hosts && !is_first(all[rank])) continue;
    members.push_back({.rank = rank, .host = all[rank].at("host"), .clock = clocks[rank], .report = {}});
    if (all[rank].contains("report"))
      members.back().report = zerorun::doctor::findings_from_json(all[rank].at("report"));
  }
  return members;
}

// Never throws: a broken link is a result.
Link measure_pair(const Environment& environment, const StorePointer& store, int first, int second,
                  bool is_first, std::shared_ptr<zerorun::Communicator>& connection) {
  Link link = {.first = first, .second = second};
  Environment pair = environment;
  pair.rank = is_first ? 0 : 1;
  pair.world_size = 2;
  pair.timeout = std::min(environment.timeout, kLongestForLink);
  const std::string name = "pair " + std::to_string(first) + " " + std::to_string(second);
  try {
    connection = zerorun::make_gloo_communicator(pair, store->part(name), Deadline(pair.timeout));
    measure_link(*connection, link);
  } catch (const std::exception& error) {
    link.error = zerorun::first_line(error.what());
  }
  return link;
}

void measure_links(const Environment& environment, const StorePointer& store, JobReport& report) {
  const auto own = std::ranges::find(report.members, environment.rank, &zerorun::doctor::Member::rank);
  const int me = own == report.members.end() ? -1 : static_cast<int>(own - report.members.begin());
  int round = 0;
  for (const auto& pairs : zerorun::doctor::rounds_of_pairs(static_cast<int>(report.members.size()))) {
    std::shared_ptr<zerorun::Communicator> connection;  // kept until the partner has finished too
    ordered_json mine;
    for (const auto& [first, second] : pairs) {
      if (me != first && me != second) continue;
      const Link link = measure_pair(environment, store, first, second, me == first, connection);
      if (me == first || !link.error.empty()) mine = to_json(link);
    }
    const Deadline deadline(environment.timeout + 3 * kLongestForLink);
    for (const ordered_json& link :
         exchange(store, environment, "round " + std::to_string(round++), mine, deadline)) {
      if (link.is_null()) continue;
      const Link told = zerorun::doctor::link_from_json(link);
      const auto known = std::ranges::find_if(report.links, [&](const Link& other) {
        return other.first == told.first && other.second == told.second;
      });
      if (known == report.links.end()) {
        report.links.push_back(told);
      } else if (!told.error.empty()) {
        *known = told;  // one partner has measured the link, the other one reports an error
      }
    }
  }
}

// Does nothing if a link is broken: collectives would only wait for their deadline.
void try_collectives(const Environment& environment, zerorun::Communicator& communicator,
                     const StorePointer& store, JobReport& report) {
  const auto is_broken = [](const Link& link) { return !link.error.empty(); };
  if (std::ranges::any_of(report.links, is_broken)) return;
  try {
    measure_collectives(communicator, report);
  } catch (const std::exception& error) {
    report.failure = zerorun::first_line(error.what());
  }
  // Twice the deadline: one rank may notice a failure up to one deadline later than another.
  for (const ordered_json& failure :
       exchange(store, environment, "collectives", report.failure, Deadline(2 * environment.timeout))) {
    if (report.failure.empty()) report.failure = failure;
  }
}

int probe() {
  const Environment environment = Environment::read();
  JobReport report;
  report.world_size = environment.world_size;
  const auto communicator = zerorun::connect(environment);
  report.transport = transport_of(*communicator);
  if (environment.world_size > 1) {
    const StorePointer store = join_store(environment, "doctor", Deadline(environment.timeout)).store;
    report.members = choose_members(store, environment);
    measure_links(environment, store, report);
    try_collectives(environment, *communicator, store, report);
    zerorun::keep_store_until_read(*store, environment.rank, environment.world_size,
                                   Deadline(environment.timeout));
  } else {
    report.members = {{.rank = 0,
                       .host = hostname(),
                       .clock = time_of_day(),
                       .report = zerorun::doctor::examine_host(1, 1)}};
  }
  if (environment.rank == 0) {
    const std::string line = zerorun::doctor::kProbeMark + text_of(to_json(report)) + "\n";
    std::fwrite(line.data(), 1, line.size(), stdout);
    std::fflush(stdout);
  }
  return 0;
}

}  // namespace

int main(int argc, char**) {
  return zerorun::run_program([&] {
    if (argc > 1) throw zerorun::UserError("zerorun_probe takes no arguments: `zerorun doctor` starts it");
    return probe();
  });
}
