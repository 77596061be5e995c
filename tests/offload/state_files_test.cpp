// Compares state in files with the same state in memory, under random accesses and with failing disks.
#include "offload/state_files.h"

#include <algorithm>
#include <catch2/catch.hpp>
#include <cstdlib>
#include <cstring>
#include <random>

#include "base/error.h"
#include "checkpoint/checksums.h"
#include "checkpoint/safetensors_reader.h"
#include "tests/checkpoint/faulty_file_system.h"
#include "tests/offload/faulty_transfers.h"
#include "tests/support/temporary_folder.h"

namespace zerorun::testing {
using namespace checkpoint;
namespace {

using Catch::Matchers::Contains;

constexpr int64_t kBlock = kChecksumBlock;

std::vector<SliceContents> some_slices() {
  std::vector<SliceContents> slices;
  for (const int64_t numel : {int64_t{48}, int64_t{400'000}, int64_t{5'008}, int64_t{300'000}}) {
    const std::string number = std::to_string(slices.size());
    slices.push_back({.label = "bucket " + number,
                      .metadata = {{"bucket", number}, {"rank", "1"}},
                      .numel = numel,
                      .states = {{"master"}, {"exp_avg"}},
                      .parts = {{"weight" + number, 10, 0, numel - 5}}});
  }
  return slices;
}

StateFilesOptions options_in(const TemporaryFolder& folder) {
  return {.folder = folder / "",
          .rank = 1,
          .buffers = 3,
          .chunk_bytes = kBlock,
          .request_bytes = 256 * 1024,
          .threads = 2,
          .timeout = std::chrono::seconds(20)};
}

// Keeps the expected contents of the files in memory.
class Model {
 public:
  explicit Model(StateFiles& files) : files_(&files) {
    for (int slice = 0; slice < files.slices(); ++slice) {
      for (const Chunk& chunk : files.layout(slice).chunks) {
        chunks_.push_back({slice, chunk});
        values_.emplace_back(static_cast<size_t>(2 * chunk.numel));
      }
    }
  }

  int count() const { return static_cast<int>(chunks_.size()); }

  /// Opens a chunk, compares its contents, changes all of its values (unless `change` is 0), and closes it.
  /// Returns false if the contents were wrong.
  bool use(int chunk, float change) {
    std::byte* memory = files_->open(chunk);
    const bool same = holds(chunk, memory);
    if (change != 0) {
      for (float& value : values_[chunk]) value += change++;
      for (size_t state = 0; state < 2; ++state)
        std::memcpy(state_of(chunk, memory, state), part(chunk, state), bytes(chunk));
    }
    files_->close(chunk, change != 0);
    return same;
  }

  /// Returns true if the safetensors reader finds the expected state of the slice in `file`.
  bool is_in(const std::filesystem::path& file, int slice) {
    SafetensorsReader reader(file);
    bool same = true;
    int64_t begin = 0;
    const int64_t end =
        files_->layout(slice).ranges.back().begin + files_->layout(slice).ranges.back().numel - 10;
    for (int chunk = 0; chunk < count(); ++chunk) {
      if (chunks_[chunk].first != slice) continue;
      const int64_t numel = std::min(chunks_[chunk].second.numel, end - begin);
      for (size_t state = 0; state < 2; ++state) {
        const std::string name = "weight" + std::to_string(slice) + (state == 0 ? ":master@" : ":exp_avg@") +
                                 std::to_string(10 + begin);
        const auto found = reader.read(name);
        same = same && found.size() == static_cast<size_t>(4 * numel) &&
               std::memcmp(found.data(), part(chunk, state), found.size()) == 0;
      }
      begin += chunks_[chunk].second.numel;
    }
    return same && begin >= end;
  }

 private:
  size_t bytes(int chunk) const { return static_cast<size_t>(4 * chunks_[chunk].second.numel); }
  const float* part(int chunk, size_t state) const {
    return values_[chunk].data() + state * static_cast<size_t>(chunks_[chunk].second.numel);
  }
  std::byte* state_of(int chunk, std::byte* memory, size_t state) const {
    return memory + chunks_[chunk].second.state_offsets[state];
  }
  bool holds(int chunk, std::byte* memory) const {
    return std::memcmp(state_of(chunk, memory, 0), part(chunk, 0), bytes(chunk)) == 0 &&
           std::memcmp(state_of(chunk, memory, 1), part(chunk, 1), bytes(chunk)) == 0;
  }

  StateFiles* files_;
  std::vector<std::pair<int, Chunk>> chunks_;
  std::vector<std::vector<float>> values_;  // for each chunk, the values of both states
};

// Runs random optimizer steps. Returns false if contents were wrong. Throws the exceptions of `files`.
bool run(StateFiles& files, uint64_t seed, const TemporaryFolder& folder) {
  Model model(files);
  std::mt19937_64 random(seed);
  auto any = [&](int count) { return static_cast<int>(random() % static_cast<uint64_t>(count)); };
  bool same = true;
  for (int step = 0; step < 6; ++step) {
    std::vector<int> order(static_cast<size_t>(model.count()));
    for (int i = 0; i < model.count(); ++i) order[i] = step % 2 == 0 ? i : model.count() - 1 - i;
    if (any(3) == 0) {  // opens every chunk twice, as Lamb does
      std::vector<int> twice;
      for (size_t i = 0; i < order.size(); ++i) {
        twice.push_back(order[i]);
        if (i > 0) twice.push_back(order[i - 1]);
      }
      order = twice;
    }
    if (any(4) != 0) files.plan(order);
    for (const int chunk : order) {
      if (any(20) != 0)
        same = same && model.use(any(30) == 0 ? any(model.count()) : chunk, static_cast<float>(any(9)));
    }
    if (any(3) != 0) files.finish_generation();
    if (any(3) != 0) continue;
    files.finish_generation();
    const int slice = any(files.slices());
    const LentSlot lent = files.lend(slice);
    const auto name = folder / ("lent" + std::to_string(seed) + "-" + std::to_string(step));
    FileToWrite file{
        .name = name.filename(), .metadata = {}, .ranges = {}, .slot = lent.file, .slot_facts = lent.facts};
    write_state_file(local_file_system(), name.parent_path(), file);
    same = same && model.is_in(name, slice);
    std::filesystem::remove(name);
  }
  for (int chunk = 0; chunk < model.count(); ++chunk) same = same && model.use(chunk, 0);
  return same;
}

}  // namespace

TEST_CASE("State in files is the same as in memory, through io_uring and threads") {
  const TemporaryFolder folder;
  for (uint64_t seed = 0; seed < 20; ++seed) {
    CAPTURE(seed);
    StateFilesOptions options = options_in(folder);
    if (seed % 2 == 0)
      options.open = [](FileSystem& files, int, int threads) {
        return open_transfer_threads(files, threads);
      };
    StateFiles files(local_file_system(), options, some_slices());
    CHECK(run(files, seed, folder));
    CHECK(files.buffer_bytes() == 3 * kBlock);
  }
}

TEST_CASE("A disk that fails causes an error, and never wrong values") {
  const TemporaryFolder folder;
  int ended = 0;
  const char* asked_for = std::getenv("ZERORUN_FAULTS");
  const int faults = asked_for ? std::atoi(asked_for) : 60;
  for (int fault = 0; fault < faults; ++fault) {
    const auto kind = static_cast<TransferFault>(1 + fault % 4);
    const uint64_t seed = static_cast<uint64_t>(fault);
    CAPTURE(fault, seed);
    int64_t count = 0;
    StateFilesOptions options = options_in(folder);
    options.open = [&](FileSystem& files, int most, int threads) {
      auto inner =
          fault % 8 < 4 ? open_transfer_threads(files, threads) : open_transfers(files, most, threads);
      return std::make_unique<FaultyTransfers>(std::move(inner), kind, fault * 7 % 300, count);
    };
    StateFiles files(local_file_system(), options, some_slices());
    std::string error;
    bool same = true;
    try {
      same = run(files, seed, folder);
    } catch (const TrainingError& thrown) {
      error = thrown.what();
    }
    CHECK(same);
    if (error.empty()) continue;
    ++ended;
    CHECK(kind != TransferFault::is_short);
    CHECK_THAT(error, Contains("the offloaded state of bucket ") && Contains(" on rank 1, in a file of ") &&
                          Contains(folder / "") && Contains("resume from the newest checkpoint"));
    CHECK_THAT(error,
               Contains("Input/output error") || Contains("No space left") || Contains("another checksum"));
    CHECK_THROWS_AS(files.finish_generation(), TrainingError);
    CHECK_THROWS_AS(files.open(0), TrainingError);
  }
  CHECK(ended > faults / 4);
}

TEST_CASE("Two generations take turns, and a lent generation is not written any more") {
  const TemporaryFolder folder;
  StateFiles files(local_file_system(), options_in(folder), some_slices());
  Model model(files);
  auto change_all = [&](float change) {
    for (int chunk = 0; chunk < model.count(); ++chunk) CHECK(model.use(chunk, change));
    files.finish_generation();
  };
  change_all(1);
  const LentSlot first = files.lend(1);
  Model at_first = model;
  change_all(2);
  const LentSlot second = files.lend(1);
  Model at_second = model;
  for (int i = 0; i < 3; ++i) change_all(3);
  auto has = [&](const LentSlot& slot, Model& expected, const std::string& name) {
    write_state_file(
        local_file_system(), folder / "",
        {.name = name, .metadata = {}, .ranges = {}, .slot = slot.file, .slot_facts = slot.facts});
    return expected.is_in(folder / name, 1);
  };
  CHECK(has(first, at_first, "first"));
  CHECK(has(second, at_second, "second"));
  CHECK_FALSE(at_first.is_in(folder / "second", 1));
}

TEST_CASE("A slot is not lent if there is no room for a file in its place, and no state is lost") {
  const TemporaryFolder folder;
  int refused = 0;
  bool all_tried = false;
  for (int64_t call = 0; !all_tried; ++call) {
    CAPTURE(call);
    FaultyFileSystem faulty(local_file_system(), {.call = call, .error = ENOSPC});
    std::unique_ptr<StateFiles> files;
    try {
      files = std::make_unique<StateFiles>(faulty, options_in(folder), some_slices());
    } catch (const UserError&) {
      continue;
    }
    Model model(*files);
    std::vector<LentSlot> lent;
    for (int round = 0; round < 3; ++round) {
      for (int chunk = 0; chunk < model.count(); ++chunk) CHECK(model.use(chunk, 1));
      files->finish_generation();
      for (int slice = 0; slice < files->slices(); ++slice) {
        try {
          lent.push_back(files->lend(slice));
        } catch (const UserError& error) {
          CHECK_THAT(error.what(), Contains("No space left"));
          ++refused;
        }
      }
    }
    for (int chunk = 0; chunk < model.count(); ++chunk) CHECK(model.use(chunk, 0));
    all_tried = faulty.calls() <= call;
  }
  CHECK(refused > 10);
}

TEST_CASE("A lent slot is copied to another file system, and damage of the copy is detected") {
  if (!std::filesystem::exists("/dev/shm")) return;
  const TemporaryFolder folder;
  StateFiles files(local_file_system(), options_in(folder), some_slices());
  Model model(files);
  for (int chunk = 0; chunk < model.count(); ++chunk) model.use(chunk, 1);
  files.finish_generation();
  const LentSlot slot = files.lend(1);
  const std::filesystem::path other = "/dev/shm/zerorun-test-" + std::to_string(::getpid());
  std::filesystem::create_directory(other);
  const FileToWrite file{
      .name = "copy", .metadata = {}, .ranges = {}, .slot = slot.file, .slot_facts = slot.facts};
  write_state_file(local_file_system(), other, file);
  CHECK(model.is_in(other / "copy", 1));
  const std::vector<std::byte> wrong(4096, std::byte{1});
  slot.file->write(wrong, 2 * kBlock);
  FileToWrite again = file;
  again.name = "again";
  CHECK_THROWS_WITH(write_state_file(local_file_system(), other, again), Contains("another checksum"));
  std::filesystem::remove_all(other);
}

TEST_CASE("A step reads and writes the bytes of the state, except chunks that stay in buffers") {
  const TemporaryFolder folder;
  StateFiles files(local_file_system(), options_in(folder), some_slices());
  Model model(files);
  std::vector<int> forwards;
  for (int chunk = 0; chunk < model.count(); ++chunk) forwards.push_back(chunk);
  std::vector<int> backwards(forwards.rbegin(), forwards.rend());
  auto walk = [&](const std::vector<int>& order) {
    files.plan(order);
    for (const int chunk : order) CHECK(model.use(chunk, 1));
    files.finish_generation();
  };
  walk(forwards);
  const int64_t state = files.file_bytes() / 2;
  CHECK(files.written_bytes() == state);
  CHECK(files.read_bytes() == 0);  // the first step has no state to read
  walk(backwards);
  CHECK(files.written_bytes() == 2 * state);
  CHECK(files.read_bytes() <= state);
  CHECK(files.read_bytes() >= state - files.buffer_bytes());
}

TEST_CASE("Memory of the buffers is pinned once, in whole pages, and unpinned before it is freed") {
  const TemporaryFolder folder;
  StateFilesOptions options = options_in(folder);
  int pins = 0;
  bool is_pinned = false;
  options.pin = [&](void* memory, size_t bytes) {
    ++pins;
    is_pinned = true;
    CHECK(reinterpret_cast<uintptr_t>(memory) % kPageBytes == 0);
    CHECK(bytes % kPageBytes == 0);
    return std::shared_ptr<void>(memory, [&is_pinned, bytes](void* pinned) {
      is_pinned = false;
      std::memset(pinned, 0, bytes);  // the memory is still there
    });
  };
  {
    StateFiles files(local_file_system(), options, some_slices());
    Model model(files);
    for (int chunk = 0; chunk < model.count(); ++chunk) CHECK(model.use(chunk, 1));
    files.finish_generation();
    CHECK(is_pinned);
  }
  CHECK(pins == 1);
  CHECK_FALSE(is_pinned);
}

TEST_CASE("A folder that has no room or does not exist is an error at the start") {
  const TemporaryFolder folder;
  StateFilesOptions options = options_in(folder);
  options.folder = folder / "nowhere";
  CHECK_THROWS_WITH(StateFiles(local_file_system(), options, some_slices()),
                    Contains("nowhere cannot be given a file"));
  std::vector<SliceContents> huge = some_slices();
  huge[0].numel = int64_t{1} << 44;
  options = options_in(folder);
  options.chunk_bytes = int64_t{1} << 40;
  CHECK_THROWS_WITH(StateFiles(local_file_system(), options, huge),
                    Contains("bytes: ") && Contains("cannot be given"));
}

}  // namespace zerorun::testing
