// Tests how an engine holds the folders into which it saves, and how it finds a checkpoint by a link.
#include <catch2/catch.hpp>
#include <chrono>
#include <condition_variable>
#include <filesystem>
#include <mutex>
#include <optional>
#include <stdexcept>
#include <thread>

#include "checkpoint/publication.h"
#include "engine/saving/checkpoints.h"
#include "tests/engine/state_support.h"
#include "tests/support/rank_threads.h"
#include "tests/support/temporary_folder.h"

namespace zerorun::testing {
using namespace checkpoint;
namespace {

namespace fs = std::filesystem;

// Runs `body` with the training of a single rank.
void train(const std::function<void(StateTraining&)>& body) {
  run_ranks(1, [&](std::shared_ptr<Communicator> communicator) {
    StateTraining training(all_state_cases().front(), 1, "fp32", communicator);
    training.step(0);
    body(training);
  });
}

// Counts this process's open files of locks.
int open_locks(const fs::path& above) {
  int count = 0;
  for (const auto& entry : fs::directory_iterator("/proc/self/fd")) {
    std::error_code gone;
    const std::string target = fs::read_symlink(entry, gone);
    if (target.starts_with(above.string()) && target.find(kLockName) != std::string::npos) ++count;
  }
  return count;
}

// A save of another engine of this process into the folder, for at most 30 s.
class OtherSave {
 public:
  explicit OtherSave(const fs::path& folder) {
    std::unique_lock lock(mutex_);
    thread_ = std::thread([this, folder] {
      const Publication publication(local_file_system(), folder, "other");
      std::unique_lock inner(mutex_);
      is_open_ = true;
      changed_.notify_all();
      changed_.wait_for(inner, std::chrono::seconds(30), [this] { return ends_; });
    });
    changed_.wait(lock, [this] { return is_open_; });
  }
  ~OtherSave() {
    {
      const std::lock_guard lock(mutex_);
      ends_ = true;
    }
    changed_.notify_all();
    thread_.join();
  }
  OtherSave(const OtherSave&) = delete;
  OtherSave& operator=(const OtherSave&) = delete;

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  bool is_open_ = false;
  bool ends_ = false;
  std::thread thread_;
};

}  // namespace

TEST_CASE("An engine keeps no lock of a folder that is gone") {
  const TemporaryFolder folder;
  train([&](StateTraining& training) {
    for (const std::string name : {"a", "b", "c"}) {
      training.engine->save_checkpoint(folder / name, "", {.asynchronous = false});
      training.state->checkpoints.finish();
      CHECK(open_locks(folder / "") == 1);
      fs::remove_all(folder / name);
    }
  });
  CHECK(open_locks(folder / "") == 0);
}

TEST_CASE("An engine that ends by an exception does not wait for another engine's save into its folder") {
  const TemporaryFolder folder;
  const OtherSave other(folder / "");
  const auto start = std::chrono::steady_clock::now();
  CHECK_THROWS_WITH(train([&](StateTraining& training) {
                      training.engine->save_checkpoint(folder / "");
                      throw std::runtime_error("the program ends");
                    }),
                    "the program ends");
  CHECK(std::chrono::steady_clock::now() - start < std::chrono::seconds(20));
}

TEST_CASE("A checkpoint loads by a link to its folder") {
  const TemporaryFolder folder;
  train([&](StateTraining& training) {
    training.engine->save_checkpoint(folder / "a", "", {.asynchronous = false});
    fs::create_directory_symlink("a/global_step1", folder / "best");
    training.step(1);
    training.engine->load_checkpoint(folder / "best");
    CHECK(training.engine->global_steps() == 1);
  });
}

}  // namespace zerorun::testing
