#include "convert/zip_archive.h"

#include <zlib.h>

#include <algorithm>
#include <cstring>
#include <optional>
#include <utility>

#include "base/error.h"

namespace zerorun::convert {
namespace {

constexpr uint32_t kEndSignature = 0x06054b50;
constexpr uint32_t kEnd64Signature = 0x06064b50;
constexpr uint32_t kLocator64Signature = 0x07064b50;
constexpr uint32_t kEntrySignature = 0x02014b50;
constexpr uint32_t kLocalSignature = 0x04034b50;
constexpr int64_t kEndBytes = 22;
constexpr int64_t kEnd64Bytes = 56;
constexpr int64_t kLocator64Bytes = 20;
constexpr int64_t kEntryBytes = 46;
constexpr int64_t kLocalBytes = 30;
constexpr uint32_t kIn64Bits = 0xffffffff;  // marks a 32-bit field whose value is in the zip64 field
constexpr uint16_t kExtra64 = 1;

// No byte swap is needed: the archive and the machines that ZeroRun runs on are little-endian.
template <typename Integer>
Integer load(std::span<const std::byte> bytes, int64_t offset) {
  Integer value;
  std::memcpy(&value, bytes.data() + offset, sizeof(value));
  return value;
}

struct Directory {
  uint64_t offset = 0;
  uint64_t bytes = 0;
  uint64_t entries = 0;
};

std::vector<std::byte> read_at(const checkpoint::OpenFile& file, int64_t offset, int64_t bytes) {
  std::vector<std::byte> buffer(static_cast<size_t>(bytes));
  file.read(buffer, offset);
  return buffer;
}

Directory find_directory64(const checkpoint::OpenFile& file, int64_t end_offset, const std::string& where) {
  const int64_t locator_offset = end_offset - kLocator64Bytes;
  if (locator_offset < 0) throw UserError(where + "damaged: it has no zip64 locator");
  const auto locator = read_at(file, locator_offset, kLocator64Bytes);
  const auto offset = load<uint64_t>(locator, 8);
  if (load<uint32_t>(locator, 0) != kLocator64Signature ||
      offset > static_cast<uint64_t>(locator_offset - std::min(locator_offset, kEnd64Bytes)))
    throw UserError(where + "damaged: its zip64 locator points outside of the file");
  const auto end = read_at(file, static_cast<int64_t>(offset), kEnd64Bytes);
  if (load<uint32_t>(end, 0) != kEnd64Signature)
    throw UserError(where + "damaged: its zip64 locator points to no zip64 directory");
  return {load<uint64_t>(end, 48), load<uint64_t>(end, 40), load<uint64_t>(end, 32)};
}

Directory find_directory(const checkpoint::OpenFile& file, const std::string& where) {
  constexpr int64_t kLongestComment = 0xffff;
  const int64_t size = file.size();
  const auto tail = read_at(file, std::max<int64_t>(0, size - kEndBytes - kLongestComment),
                            std::min(size, kEndBytes + kLongestComment));
  const auto tail_bytes = static_cast<int64_t>(tail.size());
  for (int64_t at = tail_bytes - kEndBytes; at >= 0; --at) {
    if (load<uint32_t>(tail, at) != kEndSignature) continue;
    if (at + kEndBytes + load<uint16_t>(tail, at + 20) != tail_bytes) continue;
    const Directory found{load<uint32_t>(tail, at + 16), load<uint32_t>(tail, at + 12),
                          load<uint16_t>(tail, at + 10)};
    const bool in_64_bits = found.offset == kIn64Bits || found.bytes == kIn64Bits || found.entries == 0xffff;
    return in_64_bits ? find_directory64(file, size - tail_bytes + at, where) : found;
  }
  throw UserError(
      where +
      "not a zip archive, or cut off: expected a file of torch.save (PyTorch 1.6 or newer); load an "
      "older one with torch.load and save it again");
}

// An entry of the directory. Its sizes and offset are read from the zip64 extra field, if it has one.
struct DirectoryEntry {
  std::string name;
  uint64_t compressed = 0;
  uint64_t bytes = 0;
  uint64_t header = 0;  // offset of the local header
  uint32_t crc32 = 0;
};

// Sets the fields whose 64-bit values are in the zip64 extra field. The format prescribes their order.
void read_extra(std::span<const std::byte> extra, DirectoryEntry& entry, const std::string& where) {
  uint64_t* const fields[] = {&entry.bytes, &entry.compressed, &entry.header};
  while (extra.size() >= 4) {
    const auto id = load<uint16_t>(extra, 0);
    const size_t bytes = load<uint16_t>(extra, 2);
    if (bytes > extra.size() - 4) break;
    if (id == kExtra64) {
      int64_t at = 4;
      for (uint64_t* const field : fields) {
        if (*field != kIn64Bits) continue;
        if (at + 8 > static_cast<int64_t>(4 + bytes))
          throw UserError(where + "damaged: a zip64 field is short");
        *field = load<uint64_t>(extra, at);
        at += 8;
      }
      return;
    }
    extra = extra.subspan(4 + bytes);
  }
}

// Removes the first entry from `directory` and returns it.
DirectoryEntry next_entry(std::span<const std::byte>& directory, const std::string& where) {
  if (static_cast<int64_t>(directory.size()) < kEntryBytes || load<uint32_t>(directory, 0) != kEntrySignature)
    throw UserError(where + "damaged: its directory has fewer entries than it says");
  const size_t name_bytes = load<uint16_t>(directory, 28);
  const size_t extra_bytes = load<uint16_t>(directory, 30);
  const size_t comment_bytes = load<uint16_t>(directory, 32);
  if (directory.size() - kEntryBytes < name_bytes + extra_bytes + comment_bytes)
    throw UserError(where + "damaged: an entry goes beyond its directory");
  const auto* name = reinterpret_cast<const char*>(directory.data()) + kEntryBytes;
  DirectoryEntry entry{.name = std::string(name, name_bytes),
                       .compressed = load<uint32_t>(directory, 20),
                       .bytes = load<uint32_t>(directory, 24),
                       .header = load<uint32_t>(directory, 42),
                       .crc32 = load<uint32_t>(directory, 16)};
  read_extra(directory.subspan(kEntryBytes + name_bytes, extra_bytes), entry, where);
  const std::string what = where + "entry \"" + entry.name.substr(0, 200) + "\" ";
  if (load<uint16_t>(directory, 8) & 1) throw UserError(what + "is encrypted: torch.save encrypts nothing");
  if (load<uint16_t>(directory, 10) != 0 || entry.compressed != entry.bytes)
    throw UserError(what + "is compressed, which torch.save never does: store it uncompressed (zip -0)");
  directory = directory.subspan(kEntryBytes + name_bytes + extra_bytes + comment_bytes);
  return entry;
}

}  // namespace

ZipArchive::ZipArchive(checkpoint::FileSystem& files, const std::filesystem::path& path)
    : file_(checkpoint::OpenFile::open(files, path)) {
  const std::string where = path.string() + ": ";
  const Directory directory = find_directory(file_, where);
  const auto size = static_cast<uint64_t>(file_.size());
  if (directory.offset > size || directory.bytes > size - directory.offset)
    throw UserError(where + "damaged: its directory lies outside of the file");
  const auto bytes =
      read_at(file_, static_cast<int64_t>(directory.offset), static_cast<int64_t>(directory.bytes));
  std::span<const std::byte> rest = bytes;
  std::vector<std::pair<uint64_t, uint64_t>> extents;  // begin and end of entries
  for (uint64_t index = 0; index < directory.entries; ++index) {
    const DirectoryEntry entry = next_entry(rest, where);
    const std::string what = where + "entry \"" + entry.name.substr(0, 200) + "\" ";
    if (entry.header > directory.offset || directory.offset - entry.header < kLocalBytes)
      throw UserError(what + "lies outside of the file");
    const auto local = read_at(file_, static_cast<int64_t>(entry.header), kLocalBytes);
    if (load<uint32_t>(local, 0) != kLocalSignature) throw UserError(what + "has no header of its own");
    const uint64_t offset =
        entry.header + kLocalBytes + load<uint16_t>(local, 26) + load<uint16_t>(local, 28);
    if (offset > directory.offset || entry.bytes > directory.offset - offset)
      throw UserError(what + "goes beyond the end of the data");
    extents.emplace_back(entry.header, offset + entry.bytes);
    const ZipEntry stored{static_cast<int64_t>(offset), static_cast<int64_t>(entry.bytes), entry.crc32};
    if (!entries_.emplace(entry.name, stored).second) throw UserError(what + "appears twice");
  }
  std::ranges::sort(extents);
  for (size_t index = 1; index < extents.size(); ++index) {
    if (extents[index].first < extents[index - 1].second)
      throw UserError(where + "damaged: entries overlap at byte " + std::to_string(extents[index].first));
  }
}

void ZipArchive::read(const ZipEntry& entry, int64_t begin, std::span<std::byte> into) const {
  const auto bytes = static_cast<int64_t>(into.size());
  ZR_CHECK(begin >= 0 && bytes <= entry.bytes && begin <= entry.bytes - bytes, path().string());
  file_.read(into, entry.offset + begin);
}

void ZipArchive::verify(const std::string& name) const {
  constexpr int64_t kBlock = int64_t{1} << 20;
  const ZipEntry& entry = entries_.at(name);
  std::vector<std::byte> buffer(static_cast<size_t>(std::min(kBlock, entry.bytes)));
  uLong crc = ::crc32(0, nullptr, 0);
  for (int64_t begin = 0; begin < entry.bytes; begin += kBlock) {
    const auto block = std::span(buffer).first(static_cast<size_t>(std::min(kBlock, entry.bytes - begin)));
    read(entry, begin, block);
    crc = ::crc32(crc, reinterpret_cast<const Bytef*>(block.data()), static_cast<uInt>(block.size()));
  }
  if (crc == entry.crc32) return;
  throw UserError(path().string() + ": entry \"" + name.substr(0, 200) +
                  "\" is damaged: its CRC-32 differs from the archive's directory");
}

}  // namespace zerorun::convert
