#include "tests/support/rank_threads.h"

#include <exception>
#include <thread>
#include <vector>

#include "comm/thread_communicator.h"

namespace zerorun::testing {

void run_ranks(int world_size, const RankBody& body, std::chrono::milliseconds timeout) {
  auto communicators = make_thread_communicators(world_size, timeout);
  if (world_size == 1) return body(communicators.front());  // Catch2's macros are for one thread only
  std::vector<std::exception_ptr> failures(world_size);
  std::vector<std::thread> threads;
  for (int rank = 0; rank < world_size; ++rank) {
    threads.emplace_back([&, rank] {
      try {
        body(communicators[rank]);
      } catch (...) {
        failures[rank] = std::current_exception();
      }
    });
  }
  for (auto& thread : threads) thread.join();
  for (auto& failure : failures) {
    if (failure) std::rethrow_exception(failure);
  }
}

}  // namespace zerorun::testing
