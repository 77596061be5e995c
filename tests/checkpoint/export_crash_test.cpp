// Tests that a crash while an export replaces an earlier one never leaves a mixture of the two models. A
// crash is simulated after each prefix of the file system operations; unsynced operations are lost, torn or
// reordered.
#include <algorithm>
#include <catch2/catch.hpp>
#include <random>

#include "base/error.h"
#include "checkpoint/safetensors_folder.h"
#include "checkpoint/safetensors_reader.h"
#include "tests/checkpoint/memory_file_system.h"
#include "tests/support/settings.h"

namespace zerorun::testing {
using namespace checkpoint;
namespace {

const std::filesystem::path kFolder = "/models/one";
constexpr int64_t kTensorBytes = 4096 + 400;

// An export of two tensors that are filled with one byte.
struct Export {
  char contents;
  int64_t max_shard_bytes;
  size_t finished = 0;  // number of operations recorded until finish() returned
};

void run(FileSystem& files, const Export& one) {
  std::vector<TensorToStore> tensors;
  for (const char* name : {"a", "b"}) tensors.push_back({name, "U8", {kTensorBytes}});
  SafetensorsFolder folder(files, kFolder, tensors, one.max_shard_bytes);
  const std::string data(2 * kTensorBytes, one.contents);
  folder.write(std::as_bytes(std::span(data)));
  folder.finish();
}

// Returns the distinct byte values of the model's tensors, or "" if the folder has no model.
std::string contents_of(FileSystem& files) {
  try {
    const SafetensorsReader reader(kFolder, files);
    std::string found;
    for (const auto& [name, info] : reader.tensors()) {
      for (const std::byte byte : reader.read(name)) {
        if (found.find(static_cast<char>(byte)) == std::string::npos) found += static_cast<char>(byte);
      }
    }
    return found;
  } catch (const UserError&) {
    return "";
  }
}

std::vector<Export> run_some(MemoryFileSystem& files) {
  std::vector<Export> exports = {{'a', kTensorBytes},
                                 {'b', kTensorBytes},
                                 {'c', 2 * kTensorBytes},
                                 {'d', 2 * kTensorBytes},
                                 {'e', kTensorBytes}};
  for (Export& one : exports) {
    run(files, one);
    one.finished = files.operations().size();
  }
  return exports;
}

}  // namespace

TEST_CASE("After a crash during an export the folder has the earlier model, the new one, or none") {
  MemoryFileSystem files;
  const std::vector<Export> exports = run_some(files);
  CHECK(contents_of(files) == "e");
  for (size_t count = 0; count <= files.operations().size(); ++count) {
    size_t newest = 0;  // number of exports that had finished before the crash
    while (newest < exports.size() && exports[newest].finished <= count) ++newest;
    const bool is_between = newest > 0 && exports[newest - 1].finished == count;
    for (uint64_t seed = 0; seed < (tries_all() ? 200 : 40); ++seed) {
      std::mt19937_64 random(seed);
      const auto keeps = [&] { return seed < 2 ? seed == 1 : random() % 2 == 0; };
      MemoryFileSystem left = MemoryFileSystem::after_crash(files.operations(), count, keeps);
      const std::string found = contents_of(left);
      INFO("behind operation " << count << ", seed " << seed << ": " << found);
      const bool is_earlier = newest > 0 && found == std::string(1, exports[newest - 1].contents);
      const bool is_new = newest < exports.size() && found == std::string(1, exports[newest].contents);
      if (!(is_earlier || (!is_between && (is_new || found.empty())) || (newest == 0 && found.empty())))
        FAIL_CHECK("the model is a mixture, or what had finished is gone");
    }
  }
}

}  // namespace zerorun::testing
