// Builds zip archives for tests byte by byte, valid or damaged on purpose.
#pragma once

#include <zlib.h>

#include <cstdint>
#include <cstring>
#include <string>
#include <utility>
#include <vector>

namespace zerorun::testing {

struct ZipBuilder {
  std::vector<std::pair<std::string, std::string>> entries;  // names and data
  uint16_t method = 0;
  uint16_t flags = 0;
  bool in_64_bits = false;
  bool overlapping = false;  // the directory gives the last entry the first entry's offset
  std::string comment = "";
  std::string local_extra = "";  // extra field of local headers, with which torch.save aligns data

  template <typename Integer>
  static void put(std::string& to, Integer value) {
    to.append(reinterpret_cast<const char*>(&value), sizeof(value));
  }

  static uint32_t crc_of(const std::string& data) {
    return static_cast<uint32_t>(
        ::crc32(0, reinterpret_cast<const Bytef*>(data.data()), static_cast<uInt>(data.size())));
  }

  std::string build() const {
    std::string archive;
    std::string directory;
    uint64_t first = 0;
    for (size_t index = 0; index < entries.size(); ++index) {
      const auto& [name, data] = entries[index];
      const uint64_t offset = overlapping && index + 1 == entries.size() ? first : archive.size();
      if (index == 0) first = offset;
      put<uint32_t>(archive, 0x04034b50);
      archive.append(22, '\0');
      put(archive, static_cast<uint16_t>(name.size()));
      put(archive, static_cast<uint16_t>(local_extra.size()));
      archive += name + local_extra + data;
      add_to_directory(directory, name, data, offset);
    }
    const uint64_t at = archive.size();
    archive += directory;
    if (in_64_bits) add_end64(archive, at, directory.size());
    put<uint32_t>(archive, 0x06054b50);
    put<uint32_t>(archive, 0);
    const auto count = static_cast<uint16_t>(in_64_bits ? 0xffff : entries.size());
    put(archive, count);
    put(archive, count);
    put(archive, in_64_bits ? 0xffffffffU : static_cast<uint32_t>(directory.size()));
    put(archive, in_64_bits ? 0xffffffffU : static_cast<uint32_t>(at));
    put(archive, static_cast<uint16_t>(comment.size()));
    return archive + comment;
  }

 private:
  void add_to_directory(std::string& directory, const std::string& name, const std::string& data,
                        uint64_t offset) const {
    put<uint32_t>(directory, 0x02014b50);
    put<uint32_t>(directory, 0);
    put(directory, flags);
    put(directory, method);
    put<uint32_t>(directory, 0);
    put(directory, crc_of(data));
    const auto size = in_64_bits ? 0xffffffffU : static_cast<uint32_t>(data.size());
    put(directory, size);
    put(directory, size);
    put(directory, static_cast<uint16_t>(name.size()));
    put<uint16_t>(directory, in_64_bits ? 28 : 0);
    put<uint16_t>(directory, 0);
    put<uint16_t>(directory, 0);
    put<uint16_t>(directory, 0);
    put<uint32_t>(directory, 0);
    put(directory, in_64_bits ? 0xffffffffU : static_cast<uint32_t>(offset));
    directory += name;
    if (!in_64_bits) return;
    put<uint16_t>(directory, 1);
    put<uint16_t>(directory, 24);
    put<uint64_t>(directory, data.size());
    put<uint64_t>(directory, data.size());
    put<uint64_t>(directory, offset);
  }

  void add_end64(std::string& archive, uint64_t at, uint64_t bytes) const {
    const uint64_t end64 = archive.size();
    put<uint32_t>(archive, 0x06064b50);
    put<uint64_t>(archive, 44);
    put<uint16_t>(archive, 45);
    put<uint16_t>(archive, 45);
    put<uint32_t>(archive, 0);
    put<uint32_t>(archive, 0);
    put<uint64_t>(archive, entries.size());
    put<uint64_t>(archive, entries.size());
    put(archive, bytes);
    put(archive, at);
    put<uint32_t>(archive, 0x07064b50);
    put<uint32_t>(archive, 0);
    put(archive, end64);
    put<uint32_t>(archive, 1);
  }
};

/// Returns a file like torch.save's, with `pickle` and with storages by key.
inline std::string torch_archive(const std::string& pickle,
                                 const std::vector<std::pair<std::string, std::string>>& storages = {}) {
  ZipBuilder zip{.entries = {{"archive/data.pkl", pickle}, {"archive/byteorder", "little"}}};
  for (const auto& [key, data] : storages) zip.entries.emplace_back("archive/data/" + key, data);
  return zip.build();
}

}  // namespace zerorun::testing
