// Tests generations in memory files: a rank that is killed at any moment leaves its last one whole, and
// damage is found.
#include "checkpoint/held_generation.h"

#include <signal.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <catch2/catch.hpp>
#include <cstdint>
#include <cstdlib>
#include <map>
#include <memory>
#include <optional>
#include <random>
#include <string>
#include <vector>

#include "base/held_memory.h"
#include "base/unique_fd.h"
#include "checkpoint/manifest.h"
#include "checkpoint/own_folder.h"
#include "checkpoint/saved_state.h"
#include "checkpoint/verification.h"
#include "tests/checkpoint/faulty_file_system.h"
#include "tests/support/temporary_folder.h"

namespace zerorun::testing {
namespace {

// Of all calls of pwrite() in this process, of which the code under test makes its writes to memory.
struct MemoryWrites {
  int64_t made = 0;
  int64_t killed_at = -1;        // the call in which the process is killed
  size_t bytes_before_kill = 0;  // of that call
} memory_writes;

}  // namespace
}  // namespace zerorun::testing

// Takes the place of the system library's.
extern "C" ssize_t pwrite(int file, const void* bytes, size_t size, off_t offset) {
  auto& writes = zerorun::testing::memory_writes;
  const bool is_last = writes.made++ == writes.killed_at;
  const size_t written = is_last ? std::min(size, writes.bytes_before_kill) : size;
  const ssize_t result = ::syscall(SYS_pwrite64, file, bytes, written, offset);
  if (is_last) ::raise(SIGKILL);
  return result;
}

namespace zerorun::testing {
using namespace checkpoint;
namespace {

using Catch::Matchers::Contains;
constexpr int64_t kNumel = 2'500'000;  // several writes of 4 MiB

UniqueFd memory_file() {
  UniqueFd file(::memfd_create("zerorun test", MFD_CLOEXEC));
  REQUIRE(file.is_open());
  return file;
}

std::vector<float> values_of(int64_t step) {
  std::vector<float> values(kNumel);
  for (int64_t i = 0; i < kNumel; ++i)
    values[static_cast<size_t>(i)] = static_cast<float>(step * 1000 + i % 97);
  return values;
}

// Writes a generation of one rank as an engine does. `call`: the write at which the process is killed; -1:
// none. Returns the number of writes.
int64_t hold(int file, int64_t step, int64_t call = -1) {
  const std::vector<float> values = values_of(step);
  clear_generation(file);
  HeldFiles held(file, kHeldBegin);
  FaultyFileSystem files(held, {.call = call, .meanwhile = [] { ::raise(SIGKILL); }});
  const FileToWrite one{
      .name = "bucket-00000-rank-00000.safetensors",
      .metadata = {},
      .ranges = {
          {.range = {.parameter = "weight", .state = "value", .dtype = "F32", .begin = 0, .numel = kNumel},
           .source = std::make_shared<MemorySnapshot>(std::as_bytes(std::span(values)))}}};
  const std::map<std::string, StateFileFacts> facts = {{one.name, write_state_file(files, "memory", one)}};
  Manifest manifest;
  manifest.tag = "global_step" + std::to_string(step);
  manifest.parameters["weight"] = {.shape = {kNumel}, .strides = {1}};
  manifest.numbers = {{}};
  finish_generation(file,
                    {.run = "run",
                     .attempt = "attempt",
                     .step = step,
                     .manifest = to_json(manifest),
                     .part = to_json(facts, {{"steps.global", step}}),
                     .places = held.places()},
                    held.end());
  return files.calls();
}

// The files of a generation, as load_newest() makes them.
HeldFiles files_of(const HeldGeneration& generation) {
  HeldFiles files;
  Manifest manifest = parse_manifest(generation.manifest, "memory");
  manifest.numbers.clear();
  add_part(manifest, generation.part, "memory");
  for (const auto& [name, place] : generation.places) files.add(name, place);
  files.add(kManifestName, to_json(manifest));
  return files;
}

bool is_whole(int file, int64_t step) {
  const auto there = read_generation(file);
  if (!there || there->step != step) return false;
  HeldFiles files = files_of(*there);
  if (!verify_checkpoint(files, "memory").passed()) return false;
  SavedState saved(files, "memory");
  std::vector<float> values(kNumel);
  saved.read("weight", "value", 0, kNumel, std::as_writable_bytes(std::span(values)));
  return values == values_of(step) &&
         std::get<int64_t>(saved.manifest().numbers[0].at("steps.global")) == step;
}

// Runs `action` in a child process; returns the signal that has ended it, 0 for none.
template <typename Action>
int run_in_child(const Action& action) {
  const pid_t child = ::fork();
  REQUIRE(child >= 0);
  if (child == 0) {
    action();
    ::_exit(0);
  }
  int status = 0;
  REQUIRE(::waitpid(child, &status, 0) == child);
  return WIFSIGNALED(status) ? WTERMSIG(status) : 0;
}

}  // namespace

TEST_CASE("a rank that is killed while it writes a generation leaves none of it, and then writes the next") {
  const UniqueFd file = memory_file(), other = memory_file();
  const int64_t writes = hold(other.get(), 6);
  REQUIRE(writes >= 3);
  hold(file.get(), 5);
  for (int64_t call = 0; call < writes; ++call) {
    CAPTURE(call);
    CHECK(run_in_child([&] { hold(file.get(), 7, call); }) == SIGKILL);
    CHECK_FALSE(read_generation(file.get()));
    CHECK(is_whole(other.get(), 6));
  }
  CHECK(run_in_child([&] { hold(file.get(), 7); }) == 0);  // and ended right after it
  CHECK(is_whole(file.get(), 7));
  CHECK(is_whole(other.get(), 6));
  hold(file.get(), 8);
  CHECK(is_whole(file.get(), 8));
}

TEST_CASE("a rank that is killed in any write to its memory leaves a whole generation or none") {
  const UniqueFd file = memory_file(), other = memory_file();
  const int64_t before = memory_writes.made;
  hold(other.get(), 6);
  const int64_t writes = memory_writes.made - before;
  REQUIRE(writes >= 6);  // to clear the page, the file's, the text, the page, the mark
  constexpr size_t kAll = SIZE_MAX;
  hold(file.get(), 5);
  for (int64_t call = 0; call < writes; ++call) {
    for (const size_t bytes : {size_t{0}, size_t{3}, kAll}) {
      CAPTURE(call, bytes);
      CHECK(run_in_child([&] {
              memory_writes = {.made = 0, .killed_at = call, .bytes_before_kill = bytes};
              hold(file.get(), 7);
            }) == SIGKILL);
      bool is_refused = false;  // three bytes of a mark are none
      std::optional<HeldGeneration> there;
      try {
        there = read_generation(file.get());
      } catch (const UserError&) {
        is_refused = true;
      }
      if (call == 0 && bytes == 0) {
        CHECK(is_whole(file.get(), 5));
      } else if (call == writes - 1 && bytes == kAll) {
        CHECK(is_whole(file.get(), 7));
      } else {
        CHECK_FALSE(there.has_value());
        CHECK((!is_refused || bytes == 3));
      }
    }
  }
  CHECK(is_whole(other.get(), 6));
}

TEST_CASE("a file is used once it has been cleared or written to, not when memory is taken for it") {
  const UniqueFd file = memory_file();
  CHECK(!was_used(file.get()));
  reserve_generation(file.get(), 1 << 20);
  CHECK(!was_used(file.get()));
  CHECK(!read_generation(file.get()));
  clear_generation(file.get());
  CHECK(was_used(file.get()));
  CHECK(!read_generation(file.get()));
  hold(file.get(), 5);
  CHECK((was_used(file.get()) && is_whole(file.get(), 5)));
}

TEST_CASE("a flipped bit in a generation is found") {
  const UniqueFd file = memory_file();
  hold(file.get(), 5);
  const auto there = read_generation(file.get());
  REQUIRE(there);
  const HeldFiles::Place data = there->places.begin()->second;
  const int64_t end = data.offset + data.bytes;
  std::vector<int64_t> places = {0, 7, 8, 16, 24, 31, end, end + 100, data.offset, data.offset + 5000};
  std::mt19937_64 random(5);
  for (int more = 0; more < 30; ++more)
    places.push_back(data.offset + static_cast<int64_t>(random() % static_cast<uint64_t>(data.bytes)));
  for (const int64_t place : places) {
    CAPTURE(place, data.offset, end);
    char byte = 0;
    REQUIRE(::pread(file.get(), &byte, 1, place) == 1);
    const auto flipped = static_cast<char>(byte ^ (1 << random() % 8));
    REQUIRE(::pwrite(file.get(), &flipped, 1, place) == 1);
    bool found = false;
    try {
      found = !is_whole(file.get(), 5);
    } catch (const UserError&) {
      found = true;
    }
    CHECK(found);
    REQUIRE(::pwrite(file.get(), &byte, 1, place) == 1);
  }
  CHECK(is_whole(file.get(), 5));
}

TEST_CASE("ranks find the launcher's memory by its variable, and nothing by another one") {
  const HeldMemory launcher(2, "tag");
  ::setenv(kHeldMemoryVariable, launcher.text(3).c_str(), 1);
  const OpenHeldMemory memory = open_held_memory();
  CHECK(memory.every == 3);
  REQUIRE(memory.ranks.size() == 2);
  hold(memory.ranks[1][0].get(), 4);
  CHECK(is_whole(open_held_memory().ranks[1][0].get(), 4));
  CHECK_FALSE(read_generation(memory.ranks[0][0].get()));
  for (const char* other : {"", "0", "x", "1 /dev/null /dev/null", "1 /proc/self/fd/0 /none"}) {
    CAPTURE(other);
    ::setenv(kHeldMemoryVariable, other, 1);
    CHECK(open_held_memory().ranks.empty());
  }
  ::unsetenv(kHeldMemoryVariable);
  CHECK(HeldMemory().text(1).empty());
  CHECK(HeldMemory(100'000, "tag").text(1).empty());
}

TEST_CASE("memory that the system does not give is a clear error") {
  const UniqueFd file = memory_file();
  CHECK_THROWS_WITH(reserve_generation(file.get(), int64_t{1} << 62),
                    Contains("bytes left, and it needs") || Contains("ulimit"));
  reserve_generation(file.get(), 1 << 20);
  CHECK_FALSE(read_generation(file.get()));
}

}  // namespace zerorun::testing
