#include "benchmarks/gpu/bench.h"

#include <algorithm>
#include <exception>

namespace zerorun {

std::vector<std::vector<double>> take_turns(const std::vector<Body>& bodies, int rounds,
                                            const TimeLimit& limit,
                                            const std::function<double(const Body&)>& time) {
  constexpr int kFewestRounds = 3;
  std::vector<std::vector<double>> times(bodies.size());
  for (int round = 0; round < std::max(rounds, kFewestRounds); ++round) {
    if (round >= kFewestRounds && limit.is_over()) break;
    for (size_t turn = 0; turn < bodies.size(); ++turn) {
      const size_t body = round % 2 == 0 ? turn : bodies.size() - 1 - turn;
      times[body].push_back(time(bodies[body]));
    }
  }
  return times;
}

void attempt(Bench& bench, const std::string& part, const std::string& subject, const Body& measure) {
  try {
    measure();
  } catch (const std::exception& error) {
    bench.report.add_failure(part, subject, error.what());
  }
}

}  // namespace zerorun
