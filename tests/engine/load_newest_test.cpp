// Tests Engine::load_newest(): damaged checkpoints are passed over on all ranks, before anything is restored.
#include <catch2/catch.hpp>
#include <filesystem>
#include <fstream>
#include <mutex>
#include <optional>
#include <random>

#include "base/error.h"
#include "checkpoint/own_folder.h"
#include "engine/saving/checkpoints.h"
#include "tests/checkpoint/faulty_file_system.h"
#include "tests/engine/collected_state.h"
#include "tests/engine/state_support.h"
#include "tests/support/expectations.h"
#include "tests/support/rank_threads.h"
#include "tests/support/settings.h"
#include "tests/support/stderr_capture.h"
#include "tests/support/temporary_folder.h"

namespace zerorun::testing {
using namespace checkpoint;
namespace {

namespace fs = std::filesystem;
using Catch::Matchers::Contains;

// Saves global_step2, global_step3 and global_step4.
void save_three(int ranks, int stage, const fs::path& folder) {
  run_ranks(ranks, [&](std::shared_ptr<Communicator> communicator) {
    StateTraining training(all_state_cases().front(), stage, "fp32", communicator);
    for (int step = 0; step < 4; ++step) {
      training.step(step);
      if (step > 0) training.engine->save_checkpoint(folder);
    }
    training.engine->wait_for_checkpoint();
  });
}

struct Loaded {
  std::string path;  // empty: there was no checkpoint
  CollectedState state;
  std::vector<float> losses;  // of rank 0, of the steps after it
};

// `tag`: to load by name; absent: load_newest(). `files_of`: the file system of a rank.
void load(int ranks, int stage, const fs::path& folder, const std::optional<std::string>& tag, Loaded& loaded,
          const std::function<FileSystem&(int rank)>& files_of = {}) {
  run_ranks(ranks, [&](std::shared_ptr<Communicator> communicator) {
    StateTraining training(all_state_cases().front(), stage, "fp32", communicator);
    training.step(7);  // another state than any checkpoint has
    FileSystem& files = files_of ? files_of(communicator->rank()) : local_file_system();
    const std::optional<RestoredCheckpoint> found =
        tag ? load_checkpoint(*training.state, folder, *tag, {}, files)
            : load_newest(*training.state, folder, {}, files);
    if (communicator->rank() == 0 && found) loaded.path = found->path;
    loaded.state.add(training);
    for (int step = 0; step < 2; ++step) {
      const float loss = training.step(20 + step);
      if (communicator->rank() == 0) loaded.losses.push_back(loss);
    }
  });
}

enum class Harm { flip, truncate, remove, flip_manifest, cut_manifest, remove_manifest };
constexpr int kHarms = 6;

// Returns the name of the file.
std::string harm(const fs::path& tag, Harm how, std::mt19937_64& random) {
  std::vector<fs::path> data;
  for (const auto& entry : fs::directory_iterator(tag)) {
    if (entry.path().extension() == ".safetensors") data.push_back(entry.path());
  }
  std::ranges::sort(data);
  REQUIRE_FALSE(data.empty());
  const bool is_manifest = how >= Harm::flip_manifest;
  const fs::path file = is_manifest ? tag / kManifestName : data[random() % data.size()];
  const auto bytes = static_cast<int64_t>(fs::file_size(file));
  if (how == Harm::flip || how == Harm::flip_manifest) {
    const auto place = static_cast<std::streamoff>(random() % static_cast<uint64_t>(bytes));
    std::fstream stream(file, std::ios::binary | std::ios::in | std::ios::out);
    stream.seekg(place);
    const auto byte = static_cast<char>(stream.get());
    stream.seekp(place);
    stream.put(static_cast<char>(byte ^ (1 << random() % 8)));
  } else if (how == Harm::truncate || how == Harm::cut_manifest) {
    fs::resize_file(file, static_cast<uintmax_t>(bytes / 2));
  } else {
    fs::remove(file);
  }
  // A manifest that is gone or unreadable is named by its folder at least.
  return is_manifest ? tag.filename().string() : file.filename().string();
}

// A file system in which one file has a flipped bit.
class FlippingFileSystem : public FaultyFileSystem {
 public:
  explicit FlippingFileSystem(std::string part)
      : FaultyFileSystem(local_file_system(), {}), part_(std::move(part)) {}
  int open(const fs::path& file) override {
    const int number = FaultyFileSystem::open(file);
    if (file.string().find(part_) != std::string::npos) flipped_.push_back(number);
    return number;
  }
  void close(int file) override {
    std::erase(flipped_, file);
    FaultyFileSystem::close(file);
  }
  int64_t read(int file, std::span<std::byte> bytes, int64_t offset) override {
    const int64_t size = FaultyFileSystem::read(file, bytes, offset);
    if (size > 0 && std::ranges::count(flipped_, file) > 0)
      bytes[static_cast<size_t>(size - 1)] ^= std::byte{1};
    return size;
  }

 private:
  std::string part_;
  std::vector<int> flipped_;
};

}  // namespace

TEST_CASE("load_newest() passes over damaged checkpoints, and restores the next one to the bit") {
  std::mt19937_64 random(3);
  int number = 0;
  for (int ranks = 1; ranks <= 4; ++ranks) {
    for (int stage = 0; stage <= 3; ++stage, ++number) {
      const TemporaryFolder folder;
      const fs::path saves = folder / "saves";
      save_three(ranks, stage, saves);
      Loaded expected;
      load(ranks, stage, saves, "global_step3", expected);
      Loaded older;
      load(ranks, stage, saves, "global_step2", older);
      // Of each pair of ranks and stage three of the six kinds; all six in the others.
      for (int kind = number % 2; kind < kHarms; kind += 2) {
        CAPTURE(ranks, stage, kind);
        const fs::path harmed = folder / ("harmed" + std::to_string(kind));
        fs::copy(saves, harmed, fs::copy_options::recursive);
        const std::string file = harm(harmed / "global_step4", static_cast<Harm>(kind), random);
        const bool both = kind == 1;
        const std::string second = both ? harm(harmed / "global_step3", Harm::remove, random) : "";
        CAPTURE(file, second);
        StderrCapture capture;
        Loaded loaded;
        load(ranks, stage, harmed, {}, loaded);
        const std::string log = capture.text();
        const Loaded& wanted = both ? older : expected;
        CHECK(loaded.path == harmed / (both ? "global_step2" : "global_step3"));
        check_same(loaded.state.whole(), wanted.state.whole());
        CHECK(loaded.losses == wanted.losses);
        CHECK_THAT(log,
                   Contains("a checkpoint is damaged and passed over") && Contains(file) && Contains(second));
      }
    }
  }
}

TEST_CASE("load_newest() takes the checkpoint that was saved last, whatever its name and `latest` say") {
  const TemporaryFolder folder;
  const fs::path saves = folder / "saves";
  run_ranks(2, [&](std::shared_ptr<Communicator> communicator) {
    StateTraining training(all_state_cases().front(), 2, "fp32", communicator);
    expect(!training.engine->load_newest(saves), "something is found in a folder that does not exist");
    training.step(0);
    training.engine->save_checkpoint(saves, "global_step900");
    training.step(1);
    training.engine->save_checkpoint(saves, "best", {.save_latest = false});
    // Of a save under way it waits for the end.
    const auto found = training.engine->load_newest(saves);
    expect(found && found->path == saves / "best", "another one");
    expect(training.engine->global_steps() == 2, "another step");
  });
  fs::create_directories(folder / "empty/notes");
  run_ranks(2, [&](std::shared_ptr<Communicator> communicator) {
    StateTraining training(all_state_cases().front(), 2, "fp32", communicator);
    expect(!training.engine->load_newest(folder / "empty"), "something is found in an empty folder");
    expect_throws([&] { training.engine->load_newest(saves / "best"); }, "is a checkpoint itself", "a tag");
    expect_throws(
        [&] { training.engine->load_newest(folder / (communicator->rank() == 0 ? "empty" : "saves")); },
        "ranks load different checkpoints", "other folders");
  });
}

TEST_CASE("load_newest() stops if all checkpoints are damaged, or if the newest is of another model") {
  const TemporaryFolder folder;
  const fs::path saves = folder / "saves";
  save_three(2, 1, saves);
  run_ranks(2, [&](std::shared_ptr<Communicator> communicator) {
    StateCase other = all_state_cases().front();
    other.width = 60;
    StateTraining training(other, 1, "fp32", communicator);
    expect_throws([&] { training.engine->load_newest(saves); }, "first", "another model");
    expect(training.engine->global_steps() == 0, "something was restored");
  });
  std::mt19937_64 random(4);
  for (const char* tag : {"global_step2", "global_step3", "global_step4"})
    harm(saves / tag, Harm::truncate, random);
  StderrCapture capture;
  run_ranks(2, [&](std::shared_ptr<Communicator> communicator) {
    StateTraining training(all_state_cases().front(), 1, "fp32", communicator);
    expect_throws([&] { training.engine->load_newest(saves); }, "all 3 checkpoints are damaged",
                  "only damage");
  });
}

TEST_CASE("load_newest(): damage that only one rank sees moves all ranks to an older checkpoint") {
  const TemporaryFolder folder;
  const fs::path saves = folder / "saves";
  save_three(3, 2, saves);
  Loaded expected;
  load(3, 2, saves, "global_step3", expected);
  for (int bad = 0; bad < 3; ++bad) {
    CAPTURE(bad);
    FlippingFileSystem broken("global_step4/");
    StderrCapture capture;
    Loaded loaded;
    load(3, 2, saves, {}, loaded,
         [&](int rank) -> FileSystem& { return rank == bad ? broken : local_file_system(); });
    CHECK_THAT(capture.text(), Contains("passed over: rank " + std::to_string(bad) + ": "));
    CHECK(loaded.path == saves / "global_step3");
    check_same(loaded.state.whole(), expected.state.whole());
  }
}

}  // namespace zerorun::testing
