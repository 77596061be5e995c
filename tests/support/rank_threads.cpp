#include "tests/support/rank_threads.h"

#include <ATen/Parallel.h>
#include <ATen/ops/addmm.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/tanh.h>

#include <cstdlib>
#include <exception>
#include <thread>
#include <vector>

#include "base/error.h"
#include "comm/thread_communicator.h"

namespace zerorun::testing {
namespace {

// MKL selects its vector functions in the first call. If two threads make that call at once, one of them can
// get results of low accuracy (1e-4), also in plain LibTorch. So one thread makes it before the ranks start.
void settle_math_library() {
  static const at::Tensor settled =
      at::tanh(at::addmm(at::ones({16}), at::ones({16, 16}), at::ones({16, 16})));
}

}  // namespace

void run_ranks(int world_size, const RankBody& body, std::chrono::milliseconds timeout,
               std::optional<bool> shares_memory) {
  const bool by_default = std::getenv("ZERORUN_TEST_SHARED_MEMORY") != nullptr;
  auto communicators = make_thread_communicators(world_size, timeout, shares_memory.value_or(by_default));
  if (world_size == 1) {  // in this thread, so that `body` may use Catch2's macros
    at::set_num_threads(1);
    return body(communicators.front());
  }
  settle_math_library();
  std::vector<std::exception_ptr> failures(world_size);
  std::vector<std::thread> threads;
  for (int rank = 0; rank < world_size; ++rank) {
    threads.emplace_back([&, rank] {
      at::set_num_threads(1);
      try {
        body(communicators[rank]);
      } catch (...) {
        failures[rank] = std::current_exception();
      }
    });
  }
  for (auto& thread : threads) thread.join();
  // A failing rank makes the other ranks time out with a CommError, which is not the cause of the failure.
  std::exception_ptr first;
  for (auto& failure : failures) {
    if (!failure) continue;
    try {
      std::rethrow_exception(failure);
    } catch (const CommError&) {
      if (!first) first = failure;
    } catch (...) {
      std::rethrow_exception(failure);
    }
  }
  if (first) std::rethrow_exception(first);
}

}  // namespace zerorun::testing
