// bench_timeline [SPANS]
//
// What an event of a timeline costs (base/timeline.h): without a ring, with one, and with several threads.
// Compare it with the events of a step (docs/monitoring.md) and the time of one (bench_step).
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <thread>
#include <vector>

#include "base/timeline.h"

namespace zerorun {
namespace {

constexpr int kRepetitions = 9;

// Nanoseconds of one event: each span has two.
double once(int64_t spans) {
  const auto begin = std::chrono::steady_clock::now();
  for (int64_t i = 0; i < spans; ++i) const TimelineSpan span(TimelineName::sum, -1, i);
  const std::chrono::duration<double, std::nano> time = std::chrono::steady_clock::now() - begin;
  return time.count() / static_cast<double>(2 * spans);
}

double median(int64_t spans) {
  std::vector<double> times;
  for (int i = 0; i < kRepetitions; ++i) times.push_back(once(spans));
  std::ranges::sort(times);
  return times[kRepetitions / 2];
}

double median_of_threads(int64_t spans, int count) {
  std::vector<double> times(static_cast<size_t>(count));
  std::vector<std::thread> threads;
  for (double& time : times) threads.emplace_back([&time, spans] { time = median(spans); });
  for (std::thread& thread : threads) thread.join();
  return *std::ranges::max_element(times);
}

}  // namespace
}  // namespace zerorun

int main(int argc, char** argv) {
  const int64_t spans = argc > 1 ? std::atoll(argv[1]) : 200000;
  if (spans < 1) {
    std::fprintf(stderr, "bench_timeline [SPANS]: expected a number of spans of at least 1\n");
    return 2;
  }
  std::printf("ns per event, off: %.2f\n", zerorun::median(spans));
  auto ring = zerorun::TimelineRing::create(-1, 4);
  zerorun::timeline::use(*ring);
  std::printf("ns per event, on: %.1f\n", zerorun::median(spans));
  std::printf("ns per event, on, two threads at once: %.1f\n", zerorun::median_of_threads(spans, 2));
  zerorun::timeline::leave(*ring);
}
