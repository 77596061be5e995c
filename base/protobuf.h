// Writes messages of Google's protobuf by their wire format, field by field. Values; any thread.
#pragma once

#include <bit>
#include <cstdint>
#include <cstring>
#include <string>
#include <string_view>

namespace zerorun {

/// One message. A message within another one is written first and added as bytes.
class ProtobufMessage {
 public:
  static_assert(std::endian::native == std::endian::little);

  const std::string& bytes() const { return bytes_; }
  void clear() { bytes_.clear(); }

  void add(int field, uint64_t value) {
    add_key(field, Form::varint);
    add_varint(value);
  }
  void add_signed(int field, int64_t value) { add(field, static_cast<uint64_t>(value)); }
  void add_bytes(int field, std::string_view bytes) {
    add_key(field, Form::with_length);
    add_varint(bytes.size());
    bytes_ += bytes;
  }
  void add(int field, const ProtobufMessage& message) { add_bytes(field, message.bytes_); }
  void add_double(int field, double value) { add_raw(field, Form::eight_bytes, value); }
  void add_float(int field, float value) { add_raw(field, Form::four_bytes, value); }

 private:
  enum class Form : uint64_t { varint = 0, eight_bytes = 1, with_length = 2, four_bytes = 5 };

  void add_varint(uint64_t value) {
    for (; value >= 0x80; value >>= 7) bytes_ += static_cast<char>((value & 0x7f) | 0x80);
    bytes_ += static_cast<char>(value);
  }
  void add_key(int field, Form form) {
    add_varint(static_cast<uint64_t>(field) << 3 | static_cast<uint64_t>(form));
  }
  template <typename T>
  void add_raw(int field, Form form, T value) {
    add_key(field, form);
    const size_t size = bytes_.size();
    bytes_.resize(size + sizeof value);
    std::memcpy(bytes_.data() + size, &value, sizeof value);
  }

  std::string bytes_;
};

}  // namespace zerorun
