// Compares blocks in a scratch file with the same blocks in memory, in many orders and with failing disks.
#include "offload/scratch_file.h"

#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <catch2/catch.hpp>
#include <cstring>
#include <functional>
#include <random>
#include <stdexcept>
#include <vector>

#include "base/error.h"
#include "base/process.h"
#include "checkpoint/state_header.h"
#include "tests/offload/faulty_transfers.h"
#include "tests/support/temporary_folder.h"

namespace zerorun::testing {
namespace {

using Opens = std::function<std::unique_ptr<Transfers>(checkpoint::FileSystem&, int, int)>;

constexpr int64_t kPage = checkpoint::kPageBytes;

ScratchFileOptions scratch_options(const TemporaryFolder& folder, Opens open = open_transfers) {
  return {.folder = folder / "",
          .key = "the.key",
          .rank = 3,
          .threads = 2,
          .open = std::move(open),
          .timeout = std::chrono::seconds(20)};
}

struct Kept {
  int64_t number;
  std::vector<std::byte> bytes;
};

std::vector<std::byte> some_bytes(std::mt19937& random, int64_t count) {
  std::vector<std::byte> bytes(static_cast<size_t>(count));
  std::ranges::generate(bytes, [&] { return static_cast<std::byte>(random()); });
  return bytes;
}

Kept put(ScratchFile& file, std::mt19937& random, int64_t count) {
  Kept kept{.number = 0, .bytes = some_bytes(random, count)};
  const auto fill = [&](std::byte* memory) { std::memcpy(memory, kept.bytes.data(), kept.bytes.size()); };
  kept.number = file.put(count, fill, "block of " + std::to_string(count));
  return kept;
}

// Lends the block's memory, which must be whole pages of its bytes, and keeps it.
std::byte* check_lent(ScratchFile& file, const Kept& kept) {
  std::byte* memory = file.get(kept.number);
  REQUIRE(reinterpret_cast<uintptr_t>(memory) % kPage == 0);
  REQUIRE(std::memcmp(memory, kept.bytes.data(), kept.bytes.size()) == 0);
  return memory;
}

void check_and_drop(ScratchFile& file, const Kept& kept) {
  std::byte* memory = check_lent(file, kept);
  file.drop(kept.number);
  std::memset(memory, 0, kept.bytes.size());  // it is the borrower's
  file.give_back(memory);
}

// The error of a run with a fault in the transfer `number`; `count` becomes the number of its transfers, at
// least number + 1 if the fault was met.
std::string error_of(TransferFault fault, int64_t number, int64_t& count) {
  const TemporaryFolder folder;
  count = 0;
  const auto open = [&](checkpoint::FileSystem& files, int most, int threads) {
    return std::make_unique<FaultyTransfers>(open_transfers(files, most, threads), fault, number, count);
  };
  try {
    ScratchFile file(checkpoint::local_file_system(), scratch_options(folder, open));
    std::mt19937 random(4);
    for (const int blocks : {8, 1}) {
      std::vector<Kept> kept;
      for (int block = 0; block < blocks; ++block) kept.push_back(put(file, random, 4 * kPage));
      for (; !kept.empty(); kept.pop_back()) check_and_drop(file, kept.back());
    }
    return "";
  } catch (const TrainingError& error) {
    return error.what();
  }
}

const std::vector<Opens> kWays = {open_transfers, [](checkpoint::FileSystem& files, int, int threads) {
                                    return open_transfer_threads(files, threads);
                                  }};

}  // namespace

TEST_CASE("Blocks come back as they were, the last one first, and their places are used again") {
  for (const Opens& open : kWays) {
    const TemporaryFolder folder;
    ScratchFile file(checkpoint::local_file_system(), scratch_options(folder, open));
    std::mt19937 random(1);
    for (int step = 0; step < 3; ++step) {
      std::vector<Kept> all;
      for (int block = 0; block < 12; ++block) all.push_back(put(file, random, 5 * kPage - 100));
      for (; !all.empty(); all.pop_back()) check_and_drop(file, all.back());
    }
    CHECK(file.file_bytes() == 12 * 5 * kPage);
    CHECK(file.buffer_bytes() == ScratchFile::kBuffers * 5 * kPage);
  }
}

TEST_CASE("Blocks of several sizes come back in any order, more than once, and are dropped unread") {
  for (const Opens& open : kWays) {
    const TemporaryFolder folder;
    ScratchFile file(checkpoint::local_file_system(), scratch_options(folder, open));
    std::mt19937 random(2);
    const int64_t sizes[] = {1, kPage, 3 * kPage + 17, 200 * kPage};
    std::vector<Kept> all;
    std::vector<std::byte*> lent;
    int64_t most = 0, bytes = 0;
    for (int turn = 0; turn < 400; ++turn) {
      const uint32_t chosen = random() % 8;
      if (all.size() < 4 || chosen < 3) {
        all.push_back(put(file, random, sizes[random() % 4]));
        bytes += checkpoint::rounded_up(static_cast<int64_t>(all.back().bytes.size()), kPage);
        most = std::max(most, bytes);
        continue;
      }
      const auto at = all.begin() + random() % all.size();
      if (chosen < 5) lent.push_back(check_lent(file, *at));
      if (chosen == 5 || lent.size() > 6) {
        for (const std::byte* memory : lent) file.give_back(memory);
        lent.clear();
      }
      if (chosen > 5) {
        bytes -= checkpoint::rounded_up(static_cast<int64_t>(at->bytes.size()), kPage);
        if (chosen == 6) {
          file.drop(at->number);
        } else {
          check_and_drop(file, *at);
        }
        all.erase(at);
      }
    }
    CHECK(file.file_bytes() <= 2 * most);
    for (const Kept& kept : all) check_and_drop(file, kept);
  }
}

TEST_CASE("Blocks that come back in the reverse order are read once, but for those that are in buffers") {
  for (const int at_once : {1, 2, 3}) {
    CAPTURE(at_once);
    const TemporaryFolder folder;
    int64_t transfers = 0;
    // One thread ends transfers in their order. In another order a block that is written early leaves its
    // buffer before an earlier one that is still being written.
    const auto open = [&](checkpoint::FileSystem& files, int /*most*/, int /*threads*/) {
      return std::make_unique<FaultyTransfers>(open_transfer_threads(files, 1), TransferFault::none, -1,
                                               transfers);
    };
    ScratchFile file(checkpoint::local_file_system(), scratch_options(folder, open));
    std::mt19937 random(5);
    constexpr int kBlocks = 12;
    std::vector<Kept> all;
    for (int block = 0; block < kBlocks; ++block) all.push_back(put(file, random, 5 * kPage));
    CHECK(transfers == kBlocks);
    while (!all.empty()) {
      std::vector<const std::byte*> lent;
      for (int one = 1; one <= at_once; ++one) lent.push_back(check_lent(file, *(all.end() - one)));
      for (const std::byte* memory : lent) file.give_back(memory);
      for (int one = 0; one < at_once; ++one, all.pop_back()) file.drop(all.back().number);
    }
    CHECK(transfers == 2 * kBlocks - ScratchFile::kBuffers);
  }
}

TEST_CASE("Places of other sizes are used again, though some block is always left") {
  const TemporaryFolder folder;
  ScratchFile file(checkpoint::local_file_system(), scratch_options(folder));
  std::mt19937 random(6);
  std::vector<Kept> before;
  for (int step = 0; step < 200; ++step) {
    std::vector<Kept> all;
    const int64_t pages = 1 + random() % 40;
    for (int block = 0; block < 4; ++block) all.push_back(put(file, random, pages * kPage));
    for (; !before.empty(); before.pop_back()) check_and_drop(file, before.back());
    before = std::move(all);
  }
  CHECK(file.file_bytes() <= 4 * 4 * 40 * kPage);  // twice what two steps use at most
}

TEST_CASE("While all buffers are lent there are more, and a fill that throws leaves no block") {
  const TemporaryFolder folder;
  ScratchFile file(checkpoint::local_file_system(), scratch_options(folder));
  std::mt19937 random(7);
  std::vector<Kept> all;
  std::vector<const std::byte*> lent;
  for (int block = 0; block < 20; ++block) all.push_back(put(file, random, 3 * kPage));
  for (const Kept& kept : all) lent.push_back(check_lent(file, kept));
  CHECK(file.buffer_bytes() == 20 * 3 * kPage);
  for (int block = 0; block < 20; ++block) all.push_back(put(file, random, 2 * kPage));
  const auto throws = [](std::byte*) { throw std::runtime_error("not computed"); };
  CHECK_THROWS_WITH(file.put(kPage, throws, "block"), "not computed");
  for (const std::byte* memory : lent) file.give_back(memory);
  for (; !all.empty(); all.pop_back()) check_and_drop(file, all.back());
  CHECK(file.buffer_bytes() <= ScratchFile::kBuffers * 3 * kPage);
  CHECK(file.file_bytes() == 20 * 5 * kPage);
  check_and_drop(file, put(file, random, 100 * kPage));
  CHECK(file.file_bytes() == 100 * kPage);  // it has begun anew
}

TEST_CASE("A forked child may neither keep blocks nor get them, and does not disturb its parent") {
  const TemporaryFolder folder;
  auto file =
      kept_by_forks(std::make_shared<ScratchFile>(checkpoint::local_file_system(), scratch_options(folder)));
  std::mt19937 random(8);
  std::vector<Kept> all;
  for (int block = 0; block < 6; ++block) all.push_back(put(*file, random, 30 * kPage));
  const pid_t child = ::fork();
  if (child == 0) {
    ::alarm(20);
    bool is_refused = false;
    try {
      put(*file, random, kPage);
    } catch (const UserError& error) {
      is_refused = std::string(error.what()).find("a forked child of rank 3") != std::string::npos;
    }
    file->drop(all.front().number);
    file.reset();
    ::_exit(is_refused ? 0 : 1);
  }
  int status = -1;
  REQUIRE(::waitpid(child, &status, 0) == child);
  CHECK(status == 0);
  for (; !all.empty(); all.pop_back()) check_and_drop(*file, all.back());
}

TEST_CASE("Once no block is left, a file begins anew") {
  const TemporaryFolder folder;
  ScratchFile file(checkpoint::local_file_system(), scratch_options(folder));
  std::mt19937 random(3);
  for (int64_t pages = 1; pages < 20; ++pages) check_and_drop(file, put(file, random, pages * kPage));
  CHECK(file.file_bytes() == 19 * kPage);
}

TEST_CASE("A disk that fails is a clear error, and transfers that end early go on") {
  struct Failing {
    TransferFault fault;
    std::string text;
  };
  const std::vector<Failing> ways = {{TransferFault::error, "rror"},
                                     {TransferFault::is_full, "cannot be written: No space left on device"},
                                     {TransferFault::flips, "is not what was written (another checksum)"},
                                     {TransferFault::is_short, ""}};
  for (const auto& [fault, text] : ways) {
    CAPTURE(text);
    int errors = 0;
    for (int64_t number = 0, count = 0;; ++number) {
      CAPTURE(number);
      const std::string error = error_of(fault, number, count);
      if (count <= number) break;
      if (error.empty()) continue;
      ++errors;
      CHECK_THAT(error, Catch::Contains(text) && Catch::Contains("block of 16384 on rank 3, in a file of ") &&
                            Catch::Contains("(the.key)") &&
                            Catch::Contains("resume from the newest checkpoint"));
    }
    // 9 blocks are written, and those that have lost their buffers are read.
    if (fault == TransferFault::is_short) CHECK(errors == 0);
    if (fault == TransferFault::error) CHECK(errors > 9);
    if (fault == TransferFault::is_full) CHECK(errors == 9);
    if (fault == TransferFault::flips) CHECK(errors >= 8 - ScratchFile::kBuffers);
  }
}

TEST_CASE("A plan of a scratch file has its sizes, and writes nothing") {
  ScratchFile file(checkpoint::local_file_system(),
                   {.folder = "/no such folder", .key = "the.key", .sizes_only = true});
  const auto unused = [](std::byte*) { FAIL("a block is filled"); };
  std::vector<int64_t> blocks;
  for (int block = 0; block < 6; ++block) blocks.push_back(file.put(3 * kPage - 1, unused, "block"));
  CHECK(file.get(blocks.back()) == nullptr);
  for (const int64_t block : blocks) file.drop(block);
  CHECK(file.file_bytes() == 6 * 3 * kPage);
  CHECK(file.buffer_bytes() == ScratchFile::kBuffers * 3 * kPage);
}

}  // namespace zerorun::testing
