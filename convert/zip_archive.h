// Reads a zip archive whose entries are stored uncompressed, the container that torch.save writes. Supports
// zip64. Nothing is extracted to disk, and entry names are never used as paths. Used by one thread.
// https://pkware.cachefly.net/webdocs/casestudies/APPNOTE.TXT
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <map>
#include <span>
#include <string>
#include <vector>

#include "checkpoint/file_system.h"

namespace zerorun::convert {

struct ZipEntry {
  int64_t offset = 0;  // of the entry's data, in bytes from the start of the file
  int64_t bytes = 0;
  uint32_t crc32 = 0;
};

class ZipArchive {
 public:
  /// Reads and checks the directory. Throws UserError naming the file if it is not a zip archive, is
  /// truncated, compressed or encrypted, or if two entries have the same name or overlap.
  ZipArchive(checkpoint::FileSystem& files, const std::filesystem::path& path);

  const std::filesystem::path& path() const { return file_.path(); }
  const std::map<std::string, ZipEntry>& entries() const { return entries_; }

  /// Reads `into.size()` bytes of an entry, starting at byte `begin`. All of them must be in the entry.
  void read(const ZipEntry& entry, int64_t begin, std::span<std::byte> into) const;
  /// Reads the whole entry. Throws UserError unless its CRC-32 equals the directory's.
  void verify(const std::string& name) const;

 private:
  checkpoint::OpenFile file_;
  std::map<std::string, ZipEntry> entries_;
};

}  // namespace zerorun::convert
