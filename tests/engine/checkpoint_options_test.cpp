// Tests the options of saving and loading: frozen parameters that a save leaves out or links, old tags that
// it removes, how much a load reads, and saving to a full disk.
#include <sys/mount.h>
#include <unistd.h>

#include <catch2/catch.hpp>
#include <cerrno>
#include <cstdlib>
#include <fstream>
#include <set>

#include "base/error.h"
#include "checkpoint/checksums.h"
#include "checkpoint/publication.h"
#include "checkpoint/saved_state.h"
#include "engine/saving/checkpoints.h"
#include "tests/checkpoint/counting_file_system.h"
#include "tests/engine/collected_state.h"
#include "tests/engine/partition_support.h"
#include "tests/support/rank_threads.h"
#include "tests/support/temporary_folder.h"

namespace zerorun::testing {
using namespace checkpoint;
namespace {

namespace fs = std::filesystem;
using Catch::Matchers::Contains;

StateCase adam() {
  return all_state_cases().front();
}

// Names of files in folder `a` that are hard links to the file of the same name in folder `b`.
std::set<std::string> linked(const fs::path& a, const fs::path& b) {
  std::set<std::string> names;
  for (const auto& entry : fs::directory_iterator(a)) {
    const fs::path other = b / entry.path().filename();
    if (fs::exists(other) && fs::equivalent(entry.path(), other)) names.insert(entry.path().filename());
  }
  return names;
}

// Names of the checkpoint's files that contain the frozen parameter.
std::set<std::string> frozen_files(const fs::path& folder) {
  std::set<std::string> names;
  const SavedState saved(local_file_system(), folder);
  for (const auto& [name, file] : saved.manifest().files) {
    for (const StateRange& range : file.ranges) {
      if (range.parameter == "fixed") names.insert(name);
    }
  }
  return names;
}

void check_loads(const fs::path& folder, const std::string& tag, int stage, const CollectedState& expected) {
  CollectedState loaded;
  run_ranks(2, [&](std::shared_ptr<Communicator> communicator) {
    StateTraining training(adam(), stage, "bf16", communicator);
    training.engine->load_checkpoint(folder, tag);
    loaded.add(training);
  });
  check_same(expected.whole(), loaded.whole());
}

// A file system without hard links.
class LinklessFileSystem : public FaultyFileSystem {
 public:
  LinklessFileSystem() : FaultyFileSystem(local_file_system(), {}) {}
  int link(const fs::path&, const fs::path&) override { return -EXDEV; }
};

// Mounts a file system of 64 MiB in a file, if this process may mount one.
class SmallDisk {
 public:
  explicit SmallDisk(const TemporaryFolder& folder) : mounted_(folder / "mounted") {
    fs::create_directory(mounted_);
    const std::string image = (folder / "image").string();
    const std::string command = "truncate -s 64M '" + image + "' && mkfs.ext4 -q '" + image +
                                "' && mount -o loop '" + image + "' '" + mounted_.string() + "'";
    is_there_ = ::geteuid() == 0 && std::system((command + " >/dev/null 2>&1").c_str()) == 0;
  }
  ~SmallDisk() {
    if (is_there_) ::umount2(mounted_.c_str(), MNT_DETACH);
  }
  SmallDisk(const SmallDisk&) = delete;
  SmallDisk& operator=(const SmallDisk&) = delete;
  bool is_there() const { return is_there_; }
  const fs::path& path() const { return mounted_; }

 private:
  fs::path mounted_;
  bool is_there_ = false;
};

}  // namespace

TEST_CASE("Frozen parameters are saved once, and again after writes by operators or raw access") {
  const TemporaryFolder folder;
  const int stage = GENERATE(0, 2, 3);
  const bool raw = GENERATE(false, true);
  if (raw && stage == 3) return;  // raw access throws at stage 3
  const fs::path at = folder / "a";
  std::vector<CollectedState> expected(5);
  CAPTURE(stage, raw);
  REQUIRE_NOTHROW(run_ranks(2, [&](std::shared_ptr<Communicator> communicator) {
    StateTraining training(adam(), stage, "bf16", communicator);
    auto save = [&](int step) {
      training.step(step);
      training.engine->save_checkpoint(at, "", {.keep_last = step == 4 ? 2 : 0});
      expected[step].add(training);
    };
    save(0);
    save(1);
    save(2);
    {
      const torch::NoGradGuard no_grad;
      if (raw) {
        std::memset(training.model->fixed.mutable_data_ptr(), 0x3e, training.model->fixed.nbytes());
      } else {
        training.model->fixed.mul_(3);
      }
    }
    save(3);
    save(4);
    training.engine->wait_for_checkpoint();
  }));
  // The last save removed the tags of steps 1 to 3. Their files of frozen parameters still exist as links in
  // later tags.
  CHECK(published_tags(local_file_system(), at) == std::vector<std::string>{"global_step4", "global_step5"});
  CHECK(linked(at / "global_step4", at / "global_step5") == frozen_files(at / "global_step5"));
  CHECK(!frozen_files(at / "global_step5").empty());
  check_loads(at, "global_step4", stage, expected[3]);
  check_loads(at, "global_step5", 3 - stage, expected[4]);
}

TEST_CASE(
    "Files of frozen parameters are linked to earlier tags until the program writes to the parameters") {
  const TemporaryFolder folder;
  const int stage = GENERATE(1, 3);
  run_ranks(2, [&](std::shared_ptr<Communicator> communicator) {
    StateTraining training(adam(), stage, "bf16", communicator);
    for (int step = 0; step < 3; ++step) {
      training.step(step);
      training.engine->save_checkpoint(folder / "a");
      if (step != 1) continue;
      const torch::NoGradGuard no_grad;
      training.model->fixed.fill_(0.5);  // while the save may still be writing this parameter
    }
  });
  const auto frozen = frozen_files(folder / "a/global_step1");
  CHECK(linked(folder / "a/global_step1", folder / "a/global_step2") == frozen);
  CHECK(linked(folder / "a/global_step2", folder / "a/global_step3").empty());
}

TEST_CASE("A save links no outdated file of frozen parameters after a load or a save without them") {
  const TemporaryFolder folder;
  const int stage = GENERATE(1, 3);
  const bool loads = GENERATE(false, true);
  CAPTURE(stage, loads);
  CollectedState expected;
  REQUIRE_NOTHROW(run_ranks(2, [&](std::shared_ptr<Communicator> communicator) {
    StateTraining training(adam(), stage, "bf16", communicator);
    const torch::NoGradGuard no_grad;
    auto save = [&](const std::string& tag, bool excludes = false) {
      training.engine->save_checkpoint(folder / "a", tag, {.exclude_frozen = excludes});
    };
    training.model->fixed.fill_(0.5);
    save("first");
    training.model->fixed.fill_(0.25);
    save("second");
    if (loads) {
      training.engine->load_checkpoint(folder / "a", "first");
    } else {
      training.model->fixed.fill_(0.125);
      save("third", true);
    }
    save("fourth");
    expected.add(training);
  }));
  check_loads(folder / "a", "fourth", stage, expected);
}

TEST_CASE("If a tensor of one rank cannot be saved, the call throws on all ranks, and training continues") {
  const TemporaryFolder folder;
  const int stage = GENERATE(0, 3);
  REQUIRE_NOTHROW(run_ranks(2, [&](std::shared_ptr<Communicator> communicator) {
    StateTraining training(adam(), stage, "bf16", communicator);
    training.step(0);
    if (communicator->rank() == 1) {
      training.state->unbucketed.push_back(
          {.name = "phases", .tensor = torch::zeros({3}, at::kComplexDouble), .is_buffer = true});
    }
    expect_throws([&] { training.engine->save_checkpoint(folder / "a"); },
                  "buffer phases cannot be saved: dtype ComplexDouble", "a buffer");
    {
      const torch::NoGradGuard no_grad;
      training.model->first.mul_(2);
    }
    training.step(1);
    if (communicator->rank() == 1) training.state->unbucketed.pop_back();
    training.engine->save_checkpoint(folder / "a");
    training.engine->wait_for_checkpoint();
  }));
}

TEST_CASE("Without hard links every save writes the frozen parameters") {
  const TemporaryFolder folder;
  const int stage = GENERATE(0, 3);
  CollectedState expected;
  run_ranks(2, [&](std::shared_ptr<Communicator> communicator) {
    LinklessFileSystem files;
    StateTraining training(adam(), stage, "bf16", communicator);
    for (int step = 0; step < 2; ++step) {
      training.step(step);
      training.state->checkpoints.write_to(files);
      save_checkpoint(*training.state, folder / "a", "", {.asynchronous = false});
    }
    expected.add(training);
  });
  CHECK(linked(folder / "a/global_step1", folder / "a/global_step2").empty());
  check_loads(folder / "a", "global_step2", stage, expected);
}

TEST_CASE("Frozen parameters can be left out of a save, and loading it leaves them unchanged") {
  const TemporaryFolder folder;
  const int stage = GENERATE(0, 3);
  CollectedState expected;
  run_ranks(2, [&](std::shared_ptr<Communicator> communicator) {
    StateTraining training(adam(), stage, "bf16", communicator);
    training.step(0);
    training.engine->save_checkpoint(folder / "a", "", {.exclude_frozen = true});
    const torch::NoGradGuard no_grad;
    training.model->fixed.fill_(0.5);
    expected.add(training);
  });
  CHECK(frozen_files(folder / "a/global_step1").empty());
  CollectedState loaded;
  run_ranks(2, [&](std::shared_ptr<Communicator> communicator) {
    StateTraining training(adam(), 3 - stage, "bf16", communicator);
    {
      const torch::NoGradGuard no_grad;
      training.model->fixed.fill_(0.5);
    }
    training.engine->load_checkpoint(folder / "a");
    loaded.add(training);
  });
  check_same(expected.whole(), loaded.whole());
}

TEST_CASE("A load reads each block once if layouts are equal, else at most two more blocks per range") {
  const TemporaryFolder folder;
  const int ranks = GENERATE(1, 2, 3);
  const int stage = GENERATE(1, 3);
  run_ranks(2, [&](std::shared_ptr<Communicator> communicator) {
    StateTraining training(adam(), 2, "bf16", communicator);
    training.step(0);
    training.engine->save_checkpoint(folder / "a");
  });
  const Manifest manifest = SavedState(local_file_system(), folder / "a/global_step1").manifest();
  int64_t bytes = 0;
  int64_t ranges = 0;
  for (const auto& [name, file] : manifest.files) {
    bytes += file.bytes;
    ranges += static_cast<int64_t>(file.ranges.size());
  }
  std::atomic<int64_t> read = 0;
  run_ranks(ranks, [&](std::shared_ptr<Communicator> communicator) {
    CountingFileSystem files;
    StateTraining training(adam(), stage, "bf16", communicator);
    load_checkpoint(*training.state, folder / "a", "", {}, files);
    read += files.bytes();
  });
  CAPTURE(ranks, stage, bytes, ranges, read.load());
  CHECK(read > 0);
  CHECK(read <= bytes + 2 * kChecksumBlock * ranges);
  if (ranks == 2 && stage == 1) CHECK(read <= bytes);
}

TEST_CASE(
    "A save to a full disk keeps the previous checkpoint, and the next save succeeds when there is room") {
  const TemporaryFolder folder;
  const SmallDisk disk(folder);
  if (!disk.is_there()) {
    WARN("skipped: this process may not mount a file system");
    return;
  }
  CollectedState first;
  CollectedState third;
  run_ranks(2, [&](std::shared_ptr<Communicator> communicator) {
    StateTraining training(adam(), 2, "bf16", communicator);
    training.step(0);
    training.engine->save_checkpoint(disk.path() / "a", "", {.asynchronous = false});
    first.add(training);
    communicator->barrier("saved")->wait();
    if (communicator->rank() == 0) {
      for (const int64_t bytes : {1 << 20, 4096}) {
        std::ofstream ballast(disk.path() / ("ballast" + std::to_string(bytes)), std::ios::binary);
        const std::string block(static_cast<size_t>(bytes), 'x');
        while (ballast.write(block.data(), bytes).flush()) {
        }
      }
    }
    communicator->barrier("full")->wait();
    training.step(1);
    training.engine->save_checkpoint(disk.path() / "a");
    expect_throws([&] { training.engine->wait_for_checkpoint(); }, "make room on that disk", "a full disk");
    communicator->barrier("failed")->wait();
    if (communicator->rank() == 0) {
      expect(latest_tag(local_file_system(), disk.path() / "a") == "global_step1", "another latest");
      expect(published_tags(local_file_system(), disk.path() / "a").size() == 1, "tags");
      fs::remove(disk.path() / "ballast1048576");
    }
    communicator->barrier("room")->wait();
    training.step(2);
    training.engine->save_checkpoint(disk.path() / "a");
    third.add(training);
  });
  check_loads(disk.path() / "a", "global_step1", 0, first);
  check_loads(disk.path() / "a", "global_step3", 3, third);
}

}  // namespace zerorun::testing
