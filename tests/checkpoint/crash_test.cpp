// Tests that published checkpoints survive crashes. The file system operations of a few saves are recorded.
// A crash is simulated after each prefix of them; unsynced operations are lost, torn or reordered.
#include <algorithm>
#include <catch2/catch.hpp>
#include <random>
#include <set>

#include "checkpoint/publication.h"
#include "checkpoint/state_file.h"
#include "tests/checkpoint/memory_file_system.h"
#include "tests/support/settings.h"

namespace zerorun::testing {
using namespace checkpoint;
namespace {

namespace fs = std::filesystem;
using Operations = std::vector<Operation>;

const fs::path kDirectory = "/runs/7/checkpoints";

struct Save {
  std::string tag;
  char contents;     // fills all files of this save, to distinguish several saves of one tag
  size_t published;  // number of operations recorded until publish() returned
  int64_t keep_last = 0;
};

std::string data_of(const Save& save, int rank) {
  return std::string(9000 + static_cast<size_t>(rank), save.contents);
}

std::string manifest_of(const Save& save) {
  return std::string(
             R"({"format": "zerorun checkpoint", "files": {"rank-0": {}, "rank-1": {}}, "contents": ")") +
         save.contents + "\"}";
}

// Writes the file of one rank as a save does: in pieces, followed by a sync.
void write_rank(FileSystem& files, const fs::path& folder, const Save& save, int rank) {
  OpenFile file = OpenFile::create(files, folder / ("rank-" + std::to_string(rank)));
  const std::string data = data_of(save, rank);
  const auto bytes = std::as_bytes(std::span(data));
  file.write(bytes.subspan(5000), 5000);
  file.write(bytes.first(5000), 0);
  file.sync();
}

// Writes the file of one rank as a save with offloaded state does: gives a name to the nameless file that an
// optimizer update has written.
void link_rank(FileSystem& files, const fs::path& folder, const Save& save, int rank) {
  const auto slot = std::make_shared<OpenFile>(OpenFile::create_nameless(files, kDirectory));
  const std::string data = data_of(save, rank);
  slot->write(std::as_bytes(std::span(data)), 0);
  FileToWrite file{.name = "rank-" + std::to_string(rank), .metadata = {}, .ranges = {}, .slot = slot};
  file.slot_facts.bytes = static_cast<int64_t>(data.size());
  write_state_file(files, folder, file);
}

std::vector<Save> save_some(MemoryFileSystem& files) {
  std::vector<Save> saves = {{"global_step1", 'a', 0},
                             {"global_step2", 'b', 0},
                             {"global_step1", 'c', 0},
                             {"global_step3", 'd', 0, 1}};
  for (Save& save : saves) {
    Publication publication(files, kDirectory, save.tag);
    write_rank(files, publication.folder(), save, 0);
    link_rank(files, publication.folder(), save, 1);
    publication.publish(manifest_of(save), true);
    save.published = files.operations().size();
    publication.remove_old(save.keep_last);
  }
  return saves;
}

bool is_whole(FileSystem& files, const Save& save) {
  const fs::path folder = kDirectory / save.tag;
  const auto manifest = read_text(files, folder / "manifest.json");
  if (!manifest || *manifest != manifest_of(save)) return false;
  for (int rank : {0, 1}) {
    if (read_text(files, folder / ("rank-" + std::to_string(rank))) != data_of(save, rank)) return false;
  }
  return true;
}

// Returns a description of what is wrong with `files` after a crash that followed the first `count`
// operations, or "" if nothing is wrong.
std::string fault(FileSystem& files, const std::vector<Save>& saves, size_t count) {
  int newest = -1;
  while (newest + 1 < static_cast<int>(saves.size()) && saves[newest + 1].published <= count) ++newest;
  const auto tags = published_tags(files, kDirectory);
  for (const std::string& tag : tags) {
    const bool whole = std::ranges::any_of(
        saves, [&](const Save& save) { return save.tag == tag && is_whole(files, save); });
    if (!whole) return tag + " is there and not whole";
  }
  const auto latest = latest_tag(files, kDirectory);
  if (latest && std::ranges::find(tags, *latest) == tags.end()) return "latest names " + *latest;
  if (newest < 0) return "";
  if (!latest) return "latest is not there";
  // `latest` may name the save published last or the one being published.
  for (int save = newest; save < std::min<int>(newest + 2, static_cast<int>(saves.size())); ++save) {
    if (*latest == saves[save].tag && is_whole(files, saves[save])) return "";
  }
  return "latest names " + *latest + ", which is not what was published last";
}

std::string fault_after_crash(const Operations& operations, const std::vector<Save>& saves, size_t count,
                              uint64_t seed) {
  std::mt19937_64 random(seed);
  // Seed 0 loses every unsynced operation, seed 1 keeps all of them, other seeds choose at random.
  const auto keeps = [&] { return seed < 2 ? seed == 1 : random() % 2 == 0; };
  MemoryFileSystem left = MemoryFileSystem::after_crash(operations, count, keeps);
  try {
    return fault(left, saves, count);
  } catch (const std::exception& error) {
    return error.what();
  }
}

std::string first_fault(const Operations& operations, const std::vector<Save>& saves, uint64_t seeds) {
  for (uint64_t seed = 0; seed < seeds; ++seed) {  // most faults are found by the first seeds
    for (size_t count = 0; count <= operations.size(); ++count) {
      const std::string found = fault_after_crash(operations, saves, count, seed);
      if (found.empty()) continue;
      return "behind operation " + std::to_string(count) + ", seed " + std::to_string(seed) + ": " + found;
    }
  }
  return "";
}

// The number of ways to lose unsynced operations that are tried after each operation.
uint64_t seeds() {
  return tries_all() ? 200 : 40;
}

}  // namespace

TEST_CASE("After a crash at any moment every published checkpoint is complete") {
  MemoryFileSystem files;
  const std::vector<Save> saves = save_some(files);
  CHECK(fault(files, saves, files.operations().size()) == "");
  CHECK(first_fault(files.operations(), saves, seeds()) == "");
}

TEST_CASE("Every sync is necessary") {
  MemoryFileSystem files;
  const std::vector<Save> saves = save_some(files);
  const Operations& all = files.operations();
  std::set<int> markers;  // a lost marker harms no published checkpoint
  for (const Operation& operation : all) {
    if (operation.other == kMarkerName) markers.insert(operation.child);
  }
  int syncs = 0;
  for (size_t index = 0; index < all.size(); ++index) {
    if (all[index].kind != Operation::Kind::sync || markers.contains(all[index].node)) continue;
    ++syncs;
    Operations fewer = all;
    fewer[index].node = -1;  // no file has this number, so nothing is synced
    CAPTURE(index, all[index].node);
    CHECK(first_fault(fewer, saves, 200) != "");
  }
  CHECK(syncs >= 3 * 7);
}

TEST_CASE("Every rename is necessary") {
  MemoryFileSystem files;
  const std::vector<Save> saves = save_some(files);
  const Operations& all = files.operations();
  for (size_t index = 0; index < all.size(); ++index) {
    if (all[index].kind != Operation::Kind::rename && all[index].kind != Operation::Kind::exchange) continue;
    if (all[index].other == kMarkerName) continue;  // a lost marker harms no published checkpoint
    Operations fewer = all;
    fewer[index] = {.kind = Operation::Kind::sync, .node = -1};
    CAPTURE(index, all[index].name);
    CHECK(first_fault(fewer, saves, 200) != "");
  }
}

TEST_CASE("A run after a crash saves as if there had been no crash") {
  MemoryFileSystem files;
  const std::vector<Save> saves = save_some(files);
  for (size_t count = 0; count <= files.operations().size(); ++count) {
    for (uint64_t seed = 0; seed < seeds() / 10; ++seed) {
      CAPTURE(count, seed);
      std::mt19937_64 random(seed);
      MemoryFileSystem left =
          MemoryFileSystem::after_crash(files.operations(), count, [&] { return random() % 2 == 0; });
      MemoryFileSystem again = left;
      const std::vector<Save> later = save_some(again);
      CHECK(fault(again, later, again.operations().size()) == "");
    }
  }
}

}  // namespace zerorun::testing
