// Reads files of TensorBoard's events, independently of what writes them: CRC-32C bit by bit, and protobuf by
// its wire format.
#pragma once

#include <cstdint>
#include <cstring>
#include <stdexcept>
#include <string>
#include <string_view>
#include <vector>

namespace zerorun::testing {

struct ReadEvent {
  double wall_time = 0;
  int64_t step = 0;
  std::string version;
  std::string tag;
  float value = 0;
};

inline uint32_t slow_crc32c(std::string_view bytes) {
  uint32_t crc = 0xffffffff;
  for (const char byte : bytes) {
    for (int bit = 0; bit < 8; ++bit) {
      const bool low = ((crc ^ (static_cast<unsigned char>(byte) >> bit)) & 1) != 0;
      crc >>= 1;
      if (low) crc ^= 0x82f63b78;
    }
  }
  return crc ^ 0xffffffff;
}

class EventBytes {
 public:
  explicit EventBytes(std::string_view bytes) : bytes_(bytes) {}
  bool is_empty() const { return bytes_.empty(); }
  std::string_view take(size_t count) {
    if (bytes_.size() < count) throw std::runtime_error("the file ends within a record");
    const std::string_view taken = bytes_.substr(0, count);
    bytes_.remove_prefix(count);
    return taken;
  }
  template <typename T>
  T number() {
    T value;
    std::memcpy(&value, take(sizeof value).data(), sizeof value);
    return value;
  }
  uint64_t varint() {
    uint64_t value = 0;
    for (int shift = 0;; shift += 7) {
      const auto byte = static_cast<unsigned char>(take(1)[0]);
      value |= static_cast<uint64_t>(byte & 0x7f) << shift;
      if (byte < 0x80) return value;
    }
  }
  /// What a checksum, which follows, covers.
  std::string_view checked(size_t count) {
    const std::string_view taken = take(count);
    const uint32_t crc = slow_crc32c(taken);
    const uint32_t masked = ((crc >> 15) | (crc << 17)) + 0xa282ead8u;
    if (number<uint32_t>() != masked) throw std::runtime_error("a wrong checksum");
    return taken;
  }

 private:
  std::string_view bytes_;
};

inline void read_message(EventBytes bytes, ReadEvent& event, int depth) {
  while (!bytes.is_empty()) {
    const uint64_t key = bytes.varint();
    switch (depth * 100 + static_cast<int>(key)) {
      case 0 + (1 << 3 | 1):
        event.wall_time = bytes.number<double>();
        break;
      case 0 + (2 << 3 | 0):
        event.step = static_cast<int64_t>(bytes.varint());
        break;
      case 0 + (3 << 3 | 2):
        event.version = bytes.take(bytes.varint());
        break;
      case 0 + (5 << 3 | 2):
      case 100 + (1 << 3 | 2):
        read_message(EventBytes(bytes.take(bytes.varint())), event, depth + 1);
        break;
      case 200 + (1 << 3 | 2):
        event.tag = bytes.take(bytes.varint());
        break;
      case 200 + (2 << 3 | 5):
        event.value = bytes.number<float>();
        break;
      default:
        throw std::runtime_error("an unknown field " + std::to_string(key));
    }
  }
}

inline std::vector<ReadEvent> read_events(const std::string& file) {
  std::vector<ReadEvent> events;
  for (EventBytes bytes(file); !bytes.is_empty();) {
    const auto length = EventBytes(bytes.checked(8)).number<uint64_t>();
    read_message(EventBytes(bytes.checked(length)), events.emplace_back(), 0);
  }
  return events;
}

}  // namespace zerorun::testing
