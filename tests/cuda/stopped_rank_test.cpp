// Tests the watchdog of rank 1 with a real store. Rank 0 serves the store, and a signal has stopped it. Needs
// neither CUDA nor a GPU.
#include <torch/torch.h>

#include <catch2/catch.hpp>
#include <csignal>
#include <cstdlib>
#include <thread>

#include "base/error.h"
#include "comm/connect/rendezvous.h"
#include "comm/meeting/store.h"
#include "cuda/nccl_watchdog.h"
#include "tests/comm/rank_processes.h"

namespace zerorun {
namespace {

using namespace std::chrono_literals;

// Reports that every collective has started and has not finished.
class EndlessProbe : public CollectiveProbe {
 public:
  void prepare(size_t) override {}
  bool started(size_t) override { return true; }
  bool finished(size_t) override { return false; }
  std::string failure() override { return ""; }
  void abort() override {}
};

StorePointer join(int rank, int port) {
  testing::set_rank_variables(rank, 2, port, 20s);
  return join_store(Environment::read(), "word", Deadline(20s)).store;
}

// Begins a collective that rank 0 never joins, and returns the error of the watchdog.
std::string wait_in_vain(const StorePointer& store) {
  EndlessProbe probe;
  NcclWatchdog watchdog({.rank = 1, .world_size = 2, .timeout = 3s}, probe,
                        std::make_unique<StoreCourier>(std::make_shared<WaitBoard>(store, 1), 2));
  watchdog.start();
  const at::Tensor tensor = at::zeros({8});
  const CollectiveCall call{Collective::all_gather, tensor, tensor, 0, "bucket 3", {}};
  const size_t slot = watchdog.take();
  watchdog.begin(slot, {&call, 1}, nullptr);
  watchdog.enqueued(slot);
  while (!watchdog.broken()) std::this_thread::sleep_for(1ms);
  watchdog.stop();
  try {
    watchdog.check();
  } catch (const CommError& error) {
    return error.what();
  }
  return "none";
}

}  // namespace

TEST_CASE("watchdog: if a signal has stopped rank 0, the other rank's error at the deadline names rank 0") {
  const int port = testing::free_port();
  const auto endings = testing::run_processes(
      2,
      [port](int index) -> std::string {
        const int rank = 1 - index;  // process 0 is rank 1; run_processes() waits for process 0 only
        const StorePointer store = join(rank, port);
        if (rank == 1) return wait_in_vain(store);
        std::this_thread::sleep_for(1500ms);  // by then rank 1 waits, and has called the store
        raise(SIGSTOP);
        return "went on";
      },
      1, 60s);
  CHECK(endings[0].text ==
        "all_gather of bucket 3 did not end within 3 s (the limit set by --timeout), and rank 0, which keeps "
        "the store of all ranks, does not answer: it is stopped or cannot be reached");
  CHECK(endings[0].seconds < 20);
  CHECK(endings[1].text.empty());
}

}  // namespace zerorun
