// A file with the state of one rank's slice of one bucket: a safetensors file with one checksum per MiB, as
// described in docs/checkpoint_format.md. Each object is used by one thread.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "checkpoint/file_system.h"
#include "checkpoint/memory_snapshot.h"
#include "checkpoint/state_header.h"

namespace zerorun::checkpoint {

struct RangeToWrite {
  StateRange range;  // `offset` is set by write_state_file()
  std::shared_ptr<MemorySnapshot> source;
  int64_t source_offset = 0;  // first byte of the range in `source`
};

/// The facts about a file that the manifest records.
struct StateFileFacts {
  int64_t bytes = 0;
  std::vector<uint64_t> checksums;  // one per MiB
  std::vector<StateRange> ranges;
  friend bool operator==(const StateFileFacts&, const StateFileFacts&) = default;
};

/// A file of a published checkpoint, to which a later checkpoint may link.
struct PublishedFile {
  std::filesystem::path path;
  StateFileFacts facts;
  uint64_t digest = 0;  // digest of the values in the file
  /// The file that was written under `path`. Another job may replace it; then nothing may link to it.
  std::optional<FileIdentity> identity = {};
};

struct FileToWrite {
  std::string name;
  std::map<std::string, std::string> metadata;  // written to the file's header
  std::vector<RangeToWrite> ranges;  // ranges of one source are adjacent, in ascending order of source_offset

  /// Not empty for a file of the program's own tensors, which are no parameters: the header of a safetensors
  /// file. `ranges` follow it without gaps, and the manifest records none of them.
  std::string header = {};
  bool is_frozen = false;  // training does not change the state, so the next checkpoint may link to this file
  uint64_t digest = 0;     // digest of the values, for states whose changes the engine cannot observe
  /// A published file that already has the content of `ranges`. If the file system allows it, `name` becomes
  /// a hard link to that file.
  std::optional<PublishedFile> published = {};
  /// A file of offloaded state that already has the whole content of this file. `name` becomes a hard link to
  /// it, or a copy of it if linking fails.
  std::shared_ptr<OpenFile> slot = {};
  StateFileFacts slot_facts = {};

  int64_t bytes() const;  // total size of the slot and the ranges
};

/// Creates the file in `folder`, where it must not exist, and syncs it. Calls `written(bytes)` after each
/// write. Throws UserError for I/O errors, and if `published` cannot be linked and its content differs from
/// `ranges`.
StateFileFacts write_state_file(
    FileSystem& files, const std::filesystem::path& folder, const FileToWrite& file,
    const std::function<void(int64_t)>& written = [](int64_t) {});

class StateFileReader {
 public:
  /// Opens the file. Throws UserError if it is missing or its size differs from `facts`.
  StateFileReader(FileSystem& files, const std::filesystem::path& path, StateFileFacts facts);

  /// Fills `into` with elements of `range`, one of the file's ranges, starting at element `begin` of the
  /// parameter. Verifies the checksum of each MiB that it reads. Throws UserError naming the first MiB whose
  /// checksum differs.
  void read(const StateRange& range, int64_t begin, std::span<std::byte> into);
  /// Returns a MiB of the file, the last one what is left of it; valid until another one is read. Verifies
  /// its checksum as read() does.
  std::span<const std::byte> block(int64_t index);
  const StateFileFacts& facts() const { return facts_; }
  int64_t bytes_read() const { return bytes_read_; }

 private:
  OpenFile file_;
  StateFileFacts facts_;
  std::vector<std::byte> block_;  // the last block that was read
  int64_t block_index_ = -1;
  int64_t bytes_read_ = 0;
};

}  // namespace zerorun::checkpoint
