// A file of slices: what one rank's slice of one bucket holds, as a safetensors file of which every MiB has a
// checksum. docs/checkpoint_format.md. Used by one thread each.
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
#include "checkpoint/pinned_bytes.h"
#include "checkpoint/state_header.h"

namespace zerorun {

struct RangeToWrite {
  StateRange range;  // its offset is found
  std::shared_ptr<PinnedBytes> source;
  int64_t source_offset = 0;  // where the range begins in it
};

/// What the manifest says of a file.
struct StateFileFacts {
  int64_t bytes = 0;
  std::vector<uint64_t> checksums;  // of each MiB
  std::vector<StateRange> ranges;
  friend bool operator==(const StateFileFacts&, const StateFileFacts&) = default;
};

/// A file that a checkpoint has, and that a later one may have too.
struct PublishedFile {
  std::filesystem::path path;
  StateFileFacts facts;
  uint64_t digest = 0;  // of what it was written from
};

/// A file that is to be written.
struct FileToWrite {
  std::string name;
  std::map<std::string, std::string> metadata;  // for its header
  std::vector<RangeToWrite> ranges;  // those of one source one behind the other, in ascending order

  bool is_frozen = false;  // training does not change it: the next checkpoint may have the same
  uint64_t digest = 0;     // of its values, where nobody would tell of a write
  /// It has what the ranges have, and becomes this file by another name, where that can be done.
  std::optional<PublishedFile> published = {};
  /// A file that has it all, and that nobody changes any more: it gets this name, or is copied.
  std::shared_ptr<OpenFile> slot = {};
  StateFileFacts slot_facts = {};

  int64_t bytes() const;  // of the ranges
};

/// Makes the file in `folder`, where it must not exist, and syncs it. `written(bytes)` is called as they go.
/// Throws UserError, also where what is published turns out to be something else.
StateFileFacts write_state_file(
    FileSystem& files, const std::filesystem::path& folder, const FileToWrite& file,
    const std::function<void(int64_t)>& written = [](int64_t) {});

class StateFileReader {
 public:
  /// Opens the file. Throws UserError where it is missing or has another size than `facts` say.
  StateFileReader(FileSystem& files, const std::filesystem::path& path, StateFileFacts facts);

  /// Elements from `begin` on (counted from the parameter's first) of one of the file's ranges, as many as
  /// `into` takes. Each MiB that they lie in is held against its checksum: throws UserError naming the first
  /// that differs.
  void read(const StateRange& range, int64_t begin, std::span<std::byte> into);
  const StateFileFacts& facts() const { return facts_; }
  int64_t bytes_read() const { return bytes_read_; }

 private:
  std::span<const std::byte> block(int64_t index);

  OpenFile file_;
  StateFileFacts facts_;
  std::vector<std::byte> block_;  // the one that was read last
  int64_t block_index_ = -1;
  int64_t bytes_read_ = 0;
};

}  // namespace zerorun
