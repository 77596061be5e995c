// bench_collectives: measures collectives of 1 KiB to 64 MiB between ranks, which are processes. On the CPU
// Gloo and shared memory take turns within one run. With --connect it measures the communicator that engines
// use, on the device that ZERORUN_DEVICE names: between GPUs NCCL. The results of the collectives are
// checked.
//
// The figures are those of nccl-tests. `bytes` is a rank's input of a reduce-scatter or an all-reduce, and
// its output of an all-gather or a broadcast. algbw = bytes / time. busbw = algbw x (bytes that each rank
// must send / `bytes`), so that busbw can be compared with the bandwidth of memory or network. This factor is
// (N-1)/N for a reduce-scatter and an all-gather, 2 (N-1)/N for an all-reduce, and 1 for a broadcast.
#include <torch/torch.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "base/error.h"
#include "benchmarks/command_line.h"
#include "benchmarks/figures.h"
#include "benchmarks/gpu/device_clock.h"
#include "benchmarks/local_ranks.h"
#include "comm/connect/rendezvous.h"
#include "comm/gloo/gloo_communicator.h"
#include "comm/meeting/store.h"
#include "comm/shared_memory/shared_memory_communicator.h"

namespace zerorun {
namespace {

struct Options {
  int ranks = 2;
  int rounds = 7;
  int64_t smallest = 1 << 10;
  int64_t largest = 64 << 20;
  bool connect = false;
  std::string groups;  // the transport on which a group is measured; empty: none
  bool json = false;
};

struct Carrier {
  std::string name;
  std::shared_ptr<Communicator> communicator;
};

// in_place: a reduce-scatter's output is a slice of its input, and an all-gather's input is a slice of its
// output. in_common: in place too, and in memory that all ranks share, like the memory of shared parameters.
// If the communicator has no shared memory, in_common is the same as in_place.
enum class Place { apart, in_place, in_common };

struct Measured {
  Collective collective;
  Place place;
};
const std::vector<Measured> kMeasured = {
    {Collective::reduce_scatter, Place::apart}, {Collective::reduce_scatter, Place::in_place},
    {Collective::all_gather, Place::apart},     {Collective::all_gather, Place::in_place},
    {Collective::all_gather, Place::in_common}, {Collective::all_reduce, Place::in_place},
    {Collective::broadcast, Place::in_place}};
// What an engine does with its buckets.
const std::vector<Measured> kOfEngines = {{Collective::reduce_scatter, Place::in_place},
                                          {Collective::all_gather, Place::in_place}};

// Seconds of one collective on the slowest rank. `host`: until the calls have returned, which on a GPU is
// before the work is done.
struct Seconds {
  double done = 0;
  double host = 0;
};

std::string name_of_row(const Measured& measured) {
  const bool may_differ =
      measured.collective == Collective::reduce_scatter || measured.collective == Collective::all_gather;
  std::string name = name_of(measured.collective);
  if (may_differ && measured.place == Place::in_place) name += " in place";
  if (measured.place == Place::in_common) name += " in common";
  return name;
}

double sent_per_byte(Collective collective, int ranks) {
  const double share = (ranks - 1.0) / ranks;
  switch (collective) {
    case Collective::reduce_scatter:
    case Collective::all_gather:
      return share;
    case Collective::all_reduce:
      return 2 * share;
    default:
      return 1;
  }
}

// One collective on one communicator. Its tensors are in the memory from which the communicator sends
// fastest.
class Case {
 public:
  Case(const Measured& measured, int64_t bytes, Carrier& carrier)
      : collective_(measured.collective),
        communicator_(*carrier.communicator),
        clock_(communicator_.device()),
        rank_(communicator_.rank()),
        ranks_(communicator_.world_size()) {
    const int64_t slice = bytes / 4 / ranks_;
    at::Tensor whole;
    if (measured.place == Place::in_common) {
      whole = communicator_.allocate_shared(slice * ranks_, at::kFloat);
    }
    if (!whole.defined()) whole = communicator_.allocate(slice * ranks_, at::kFloat);
    const bool sliced = collective_ == Collective::reduce_scatter || collective_ == Collective::all_gather;
    const at::Tensor part = !sliced                          ? whole
                            : measured.place == Place::apart ? communicator_.allocate(slice, at::kFloat)
                                                             : whole.narrow(0, rank_ * slice, slice);
    input_ = collective_ == Collective::all_gather ? part : whole;
    output_ = collective_ == Collective::all_gather ? whole : part;
    fill();
  }

  void run() {
    switch (collective_) {
      case Collective::reduce_scatter:
        return communicator_.reduce_scatter(output_, input_, "bench")->wait();
      case Collective::all_gather:
        return communicator_.all_gather(output_, input_, "bench")->wait();
      case Collective::all_reduce:
        return communicator_.all_reduce(output_, "bench")->wait();
      case Collective::broadcast:
        return communicator_.broadcast(output_, 0, "bench")->wait();
      case Collective::barrier:
        return communicator_.barrier("bench")->wait();
    }
  }

  /// Means of a run on this rank, over `times` runs.
  Seconds time(int times) {
    clock_.wait();
    communicator_.barrier("the start")->wait();
    const auto begin = std::chrono::steady_clock::now();
    for (int i = 0; i < times; ++i) run();
    const double host = milliseconds_since(begin);
    clock_.wait();
    return {.done = milliseconds_since(begin) / 1e3 / times, .host = host / 1e3 / times};
  }

  /// Runs once more on fresh values and checks the result. The values are small integers, so that sums are
  /// exact in any order.
  void check() {
    output_.fill_(-1);
    communicator_.barrier("what others have put there is gone")->wait();
    fill();
    run();
    const at::Tensor pattern =
        pattern_of(collective_ == Collective::reduce_scatter ? rank_ : 0, output_.numel());
    at::Tensor wanted = pattern;
    if (collective_ == Collective::reduce_scatter || collective_ == Collective::all_reduce) {
      wanted = pattern * ranks_ + ranks_ * (ranks_ - 1) / 2;
    } else if (collective_ == Collective::all_gather) {
      const int64_t slice = input_.numel();
      wanted =
          (pattern_of(0, slice).view({1, slice}) + at::arange(ranks_, on_device(at::kFloat)).view({-1, 1}))
              .view(-1);
    }
    if (!at::equal(output_, wanted)) {
      throw Error(std::string("wrong result of ") + name_of(collective_) + ", " +
                  std::to_string(output_.nbytes()) + " bytes");
    }
  }

 private:
  // Returns the values of the slice with index `slice`, which has `numel` elements.
  at::Tensor pattern_of(int64_t slice, int64_t numel) const {
    return at::arange(slice * numel, (slice + 1) * numel, on_device(at::kLong)).remainder(251).to(at::kFloat);
  }
  at::TensorOptions on_device(at::ScalarType dtype) const {
    return at::TensorOptions().dtype(dtype).device(clock_.location());
  }
  void fill() { input_.copy_(pattern_of(0, input_.numel())).add_(rank_); }

  Collective collective_;
  Communicator& communicator_;
  DeviceClock clock_;
  int64_t rank_;
  int64_t ranks_;
  at::Tensor input_;
  at::Tensor output_;
};

// Returns the means of the slowest rank.
Seconds slowest(Communicator& all, const Seconds& mine) {
  at::Tensor took = at::zeros({2, all.world_size()}, at::kDouble);
  took[0][all.rank()] = mine.done;
  took[1][all.rank()] = mine.host;
  all.all_reduce(took.view(-1), "times")->wait();
  return {.done = took[0].max().item<double>(), .host = took[1].max().item<double>()};
}

// Returns for each communicator the medians over rounds.
std::vector<Seconds> measure(const Measured& measured, int64_t bytes, std::vector<Carrier>& carriers,
                             int rounds) {
  const int times = static_cast<int>(std::clamp<int64_t>((int64_t{32} << 20) / bytes, 2, 200));
  std::vector<Case> cases;
  for (Carrier& carrier : carriers) cases.emplace_back(measured, bytes, carrier);
  std::vector<std::vector<double>> done(carriers.size());
  std::vector<std::vector<double>> host(carriers.size());
  for (int round = -1; round < rounds; ++round) {  // round -1 warms up
    for (size_t i = 0; i < cases.size(); ++i) {
      const Seconds took = slowest(*carriers.front().communicator, cases[i].time(times));
      if (round < 0) continue;
      done[i].push_back(took.done);
      host[i].push_back(took.host);
    }
  }
  for (Case& one : cases) one.check();
  std::vector<Seconds> medians;
  for (size_t i = 0; i < cases.size(); ++i) medians.push_back({median(done[i]), median(host[i])});
  return medians;
}

double gb_per_second(int64_t bytes, const Seconds& seconds) {
  return static_cast<double>(bytes) / seconds.done / 1e9;
}

void print_head(const Options& options, const std::vector<Carrier>& carriers) {
  const Communicator& communicator = *carriers.front().communicator;
  const bool is_gpu = communicator.device().location().is_cuda();
  std::printf(
      "%d ranks (%s), float32, medians of %d rounds of the slowest rank; microseconds, algbw and busbw in "
      "GB/s%s\n"
      "busbw = algbw x (N-1)/N for reduce_scatter and all_gather, x 2 (N-1)/N for all_reduce, x 1 for "
      "broadcast\n"
      "%-23s %10s",
      communicator.world_size(), name_of_card(communicator.device().location()).c_str(), options.rounds,
      is_gpu ? "; call: microseconds until the host's call returns" : "", "", "bytes");
  for (const Carrier& carrier : carriers) {
    std::printf("  %11s %8s %8s", carrier.name.c_str(), "algbw", "busbw");
    if (is_gpu) std::printf(" %8s", "call");
  }
  std::printf(carriers.size() > 1 ? "  %7s\n" : "\n", "ratio");
}

void print_row(const Measured& measured, int64_t bytes, const std::vector<Carrier>& carriers,
               const std::vector<Seconds>& seconds) {
  Communicator& communicator = *carriers.front().communicator;
  const double bus = sent_per_byte(measured.collective, communicator.world_size());
  std::printf("%-23s %10lld", name_of_row(measured).c_str(), static_cast<long long>(bytes));
  for (const Seconds& took : seconds) {
    const double algbw = gb_per_second(bytes, took);
    std::printf("  %11.1f %8.3f %8.3f", took.done * 1e6, algbw, algbw * bus);
    if (communicator.device().location().is_cuda()) std::printf(" %8.1f", took.host * 1e6);
  }
  if (seconds.size() > 1) std::printf("  %7.2f", seconds[0].done / seconds[1].done);
  std::printf("\n");
  std::fflush(stdout);
}

nlohmann::json row_of(const Measured& measured, int64_t bytes, const std::vector<Carrier>& carriers,
                      const std::vector<Seconds>& seconds) {
  const double bus = sent_per_byte(measured.collective, carriers.front().communicator->world_size());
  nlohmann::json row{{"collective", name_of_row(measured)}, {"bytes", bytes}};
  for (size_t i = 0; i < carriers.size(); ++i) {
    const double algbw = gb_per_second(bytes, seconds[i]);
    row[carriers[i].name] = {{"microseconds", seconds[i].done * 1e6},
                             {"call_microseconds", seconds[i].host * 1e6},
                             {"algbw_gb_s", algbw},
                             {"busbw_gb_s", algbw * bus}};
  }
  if (seconds.size() > 1) row["times_as_fast"] = seconds[0].done / seconds[1].done;
  return row;
}

// The communicator of engines.
std::vector<Carrier> connect_one() {
  auto communicator = connect();
  const bool is_gpu = communicator->device().location().is_cuda();
  return {{is_gpu ? "nccl" : communicator->shares_memory() ? "shm" : "gloo", communicator}};
}

std::vector<Carrier> connect_all() {
  const Environment environment = Environment::read();
  const Deadline deadline(environment.timeout);
  const Joined joined = join_store(environment, "bench", deadline);
  std::string obstacle;
  auto shared =
      make_shared_memory_communicator(RanksOfHost::all(environment.rank, environment.world_size),
                                      joined.store, joined.job, environment.timeout, deadline, obstacle);
  if (!shared) throw UserError("no shared memory: " + obstacle);
  return {{"gloo", make_gloo_communicator(environment, joined.store, deadline)}, {"shm", std::move(shared)}};
}

// The communicator of all ranks over the transport of this name, and one of a group of them all.
std::vector<Carrier> connect_group(const std::string& transport) {
  std::vector<Carrier> all = connect_all();
  auto world = std::ranges::find(all, transport, &Carrier::name)->communicator;
  RankGroup group{.name = "group", .ranks = world->group_of_ranks().ranks};
  return {{transport, world}, {transport + " group", world->split({group})}};
}

// Throws if the two communicators have sent different numbers of elements.
void check_volumes(std::vector<Carrier>& carriers) {
  for (const Measured& measured : kMeasured) {
    const double world = carriers[0].communicator->volume().elements(measured.collective);
    const double group = carriers[1].communicator->volume().elements(measured.collective);
    if (world != group && measured.collective != Collective::all_reduce) {
      throw Error(std::string("a group has sent ") + std::to_string(group) + " elements in " +
                  name_of(measured.collective) + ", all ranks " + std::to_string(world));
    }
  }
}

int run_rank(const Options& options) {
  at::set_num_threads(1);
  std::vector<Carrier> carriers = options.connect          ? connect_one()
                                  : options.groups.empty() ? connect_all()
                                                           : connect_group(options.groups);
  for (Carrier& carrier : carriers) carrier.communicator->volume().reset();
  const Communicator& communicator = *carriers.front().communicator;
  const bool speaks = communicator.rank() == 0;
  nlohmann::json result{{"ranks", communicator.world_size()},
                        {"device", name_of_card(communicator.device().location())},
                        {"rounds", options.rounds},
                        {"rows", nlohmann::json::array()}};
  if (speaks && !options.json) print_head(options, carriers);
  for (const Measured& measured : options.connect ? kOfEngines : kMeasured) {
    for (int64_t bytes = options.smallest; bytes <= options.largest; bytes *= 4) {
      const std::vector<Seconds> seconds = measure(measured, bytes, carriers, options.rounds);
      if (!speaks) continue;
      if (options.json) {
        result["rows"].push_back(row_of(measured, bytes, carriers, seconds));
      } else {
        print_row(measured, bytes, carriers, seconds);
      }
    }
  }
  if (!options.groups.empty()) check_volumes(carriers);
  if (speaks && options.json) std::printf("%s\n", result.dump(2).c_str());
  return 0;
}

int run(const Options& options) {
  const bool is_rank = options.connect && Environment::read().world_size > 1;
  if (is_rank) return run_rank(options);
  return run_local_ranks(options.ranks, [&] { return run_rank(options); });
}

}  // namespace
}  // namespace zerorun

int main(int argc, char** argv) {
  zerorun::Options options;
  CLI::App app(
      "Times collectives over Gloo and over shared memory in one run, or over NCCL, and checks their "
      "results.",
      "bench_collectives");
  app.option_defaults()->always_capture_default();
  app.add_option("--ranks", options.ranks)->check(CLI::Range(2, 64));
  app.add_option("--rounds", options.rounds, "timed rounds of each size")->check(CLI::Range(1, 1000));
  app.add_option("--smallest", options.smallest, "bytes; each size is four times the one before")
      ->check(CLI::Range(int64_t{1024}, int64_t{1} << 34));
  app.add_option("--largest", options.largest, "bytes")->check(CLI::Range(int64_t{1024}, int64_t{1} << 34));
  app.add_flag(
      "--connect", options.connect,
      "measure the communicator that engines use, on the device that ZERORUN_DEVICE names; as a rank "
      "of a job if a launcher has started this one, else between --ranks on this host");
  app.add_option("--groups", options.groups,
                 "measure a group of all ranks beside the communicator of all ranks, over this transport")
      ->check(CLI::IsMember({"gloo", "shm"}))
      ->excludes("--connect");
  app.add_flag("--json", options.json, "print JSON");
  return zerorun::parse_and_run(app, argc, argv, [&] { return zerorun::run(options); });
}
