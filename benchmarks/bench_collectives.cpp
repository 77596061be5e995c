// bench_collectives: measures collectives of 1 KiB to 64 MiB between CPU ranks, which are processes. Gloo and
// shared memory take turns within one run. The results of the collectives are checked.
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
#include "base/program.h"
#include "benchmarks/local_ranks.h"
#include "comm/gloo_communicator.h"
#include "comm/rendezvous.h"
#include "comm/shared_memory_communicator.h"

namespace zerorun {
namespace {

struct Options {
  int ranks = 2;
  int rounds = 7;
  int64_t smallest = 1 << 10;
  int64_t largest = 64 << 20;
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
constexpr Measured kMeasured[] = {
    {Collective::reduce_scatter, Place::apart}, {Collective::reduce_scatter, Place::in_place},
    {Collective::all_gather, Place::apart},     {Collective::all_gather, Place::in_place},
    {Collective::all_gather, Place::in_common}, {Collective::all_reduce, Place::in_place},
    {Collective::broadcast, Place::in_place}};

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

  /// Mean seconds of a run on this rank, over `times` runs.
  double time(int times) {
    communicator_.barrier("the start")->wait();
    const auto begin = std::chrono::steady_clock::now();
    for (int i = 0; i < times; ++i) run();
    const std::chrono::duration<double> took = std::chrono::steady_clock::now() - begin;
    return took.count() / times;
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
          pattern_of(0, slice).repeat({ranks_}) + at::arange(ranks_, at::kFloat).repeat_interleave(slice);
    }
    if (!at::equal(output_, wanted)) {
      throw Error(std::string("wrong result of ") + name_of(collective_) + ", " +
                  std::to_string(output_.nbytes()) + " bytes");
    }
  }

 private:
  // Returns the values of the slice with index `slice`, which has `numel` elements.
  static at::Tensor pattern_of(int64_t slice, int64_t numel) {
    return at::arange(slice * numel, (slice + 1) * numel, at::kLong).remainder(251).to(at::kFloat);
  }
  void fill() { input_.copy_(pattern_of(0, input_.numel())).add_(rank_); }

  Collective collective_;
  Communicator& communicator_;
  int64_t rank_;
  int64_t ranks_;
  at::Tensor input_;
  at::Tensor output_;
};

double median(std::vector<double> values) {
  std::ranges::sort(values);
  return values[values.size() / 2];
}

// Returns for each communicator the seconds that a run takes on the slowest rank, as the median over rounds.
std::vector<double> measure(const Measured& measured, int64_t bytes, std::vector<Carrier>& carriers,
                            int rounds) {
  const int times = static_cast<int>(std::clamp<int64_t>((int64_t{32} << 20) / bytes, 2, 200));
  std::vector<Case> cases;
  for (Carrier& carrier : carriers) cases.emplace_back(measured, bytes, carrier);
  std::vector<std::vector<double>> seconds(carriers.size());
  Communicator& all = *carriers.front().communicator;
  for (int round = -1; round < rounds; ++round) {  // round -1 warms up
    for (size_t i = 0; i < cases.size(); ++i) {
      at::Tensor took = at::zeros({all.world_size()}, at::kDouble);
      took[all.rank()] = cases[i].time(times);
      all.all_reduce(took, "times")->wait();
      if (round >= 0) seconds[i].push_back(took.max().item<double>());
    }
  }
  for (Case& one : cases) one.check();
  std::vector<double> medians;
  for (const std::vector<double>& values : seconds) medians.push_back(median(values));
  return medians;
}

void print_row(const Options& options, const Measured& measured, int64_t bytes,
               const std::vector<double>& seconds) {
  const double bus = sent_per_byte(measured.collective, options.ranks);
  std::printf("%-23s %10lld", name_of_row(measured).c_str(), static_cast<long long>(bytes));
  for (double took : seconds) {
    const double algbw = static_cast<double>(bytes) / took / 1e9;
    std::printf("  %11.1f %8.3f %8.3f", took * 1e6, algbw, algbw * bus);
  }
  std::printf("  %7.2f\n", seconds[0] / seconds[1]);
  std::fflush(stdout);
}

nlohmann::json row_of(const Options& options, const Measured& measured, int64_t bytes,
                      const std::vector<Carrier>& carriers, const std::vector<double>& seconds) {
  nlohmann::json row{{"collective", name_of_row(measured)}, {"bytes", bytes}};
  for (size_t i = 0; i < carriers.size(); ++i) {
    const double algbw = static_cast<double>(bytes) / seconds[i] / 1e9;
    row[carriers[i].name] = {{"microseconds", seconds[i] * 1e6},
                             {"algbw_gb_s", algbw},
                             {"busbw_gb_s", algbw * sent_per_byte(measured.collective, options.ranks)}};
  }
  row["times_as_fast"] = seconds[0] / seconds[1];
  return row;
}

std::vector<Carrier> connect_all() {
  const Environment environment = Environment::read();
  const Deadline deadline(environment.timeout);
  const Joined joined = join_store(environment, "bench", deadline);
  std::string obstacle;
  auto shared = make_shared_memory_communicator(environment, joined, deadline, obstacle);
  if (!shared) throw UserError("no shared memory: " + obstacle);
  return {{"gloo", make_gloo_communicator(environment, joined.store, deadline)}, {"shm", std::move(shared)}};
}

int run_rank(const Options& options) {
  at::set_num_threads(1);
  std::vector<Carrier> carriers = connect_all();
  const bool speaks = carriers.front().communicator->rank() == 0;
  nlohmann::json result{
      {"ranks", options.ranks}, {"rounds", options.rounds}, {"rows", nlohmann::json::array()}};
  if (speaks && !options.json) {
    std::printf(
        "%d ranks of 1 thread, float32, medians of %d rounds of the slowest rank; microseconds, algbw and "
        "busbw in "
        "GB/s\nbusbw = algbw x (N-1)/N for reduce_scatter and all_gather, x 2 (N-1)/N for all_reduce, x 1 "
        "for "
        "broadcast\n%-23s %10s  %29s  %29s  %7s\n",
        options.ranks, options.rounds, "", "bytes", "Gloo", "shared memory", "ratio");
  }
  for (const Measured& measured : kMeasured) {
    for (int64_t bytes = options.smallest; bytes <= options.largest; bytes *= 4) {
      const std::vector<double> seconds = measure(measured, bytes, carriers, options.rounds);
      if (!speaks) continue;
      if (options.json) {
        result["rows"].push_back(row_of(options, measured, bytes, carriers, seconds));
      } else {
        print_row(options, measured, bytes, seconds);
      }
    }
  }
  if (speaks && options.json) std::printf("%s\n", result.dump(2).c_str());
  return 0;
}

}  // namespace
}  // namespace zerorun

int main(int argc, char** argv) {
  zerorun::Options options;
  CLI::App app("Times collectives over Gloo and over shared memory in one run, and checks their results.",
               "bench_collectives");
  app.option_defaults()->always_capture_default();
  app.add_option("--ranks", options.ranks)->check(CLI::Range(2, 64));
  app.add_option("--rounds", options.rounds, "timed rounds of each size")->check(CLI::Range(1, 1000));
  app.add_option("--smallest", options.smallest, "bytes; each size is four times the one before")
      ->check(CLI::Range(int64_t{1024}, int64_t{1} << 34));
  app.add_option("--largest", options.largest, "bytes")->check(CLI::Range(int64_t{1024}, int64_t{1} << 34));
  app.add_flag("--json", options.json, "print JSON");
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& error) {
    return app.exit(error) == 0 ? 0 : 2;
  }
  return zerorun::run_program(
      [&] { return zerorun::run_local_ranks(options.ranks, [&] { return zerorun::run_rank(options); }); });
}
