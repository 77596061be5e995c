// Writes pickles for tests with the opcodes of protocols 2 to 4. Each function returns the bytes that push
// one value. Source: https://github.com/python/cpython/blob/3.11/Lib/pickletools.py
#pragma once

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

namespace zerorun::testing::pickled {

inline const std::string kNone = "N";
inline const std::string kFalse = "\x89";
inline const std::string kTrue = "\x88";

inline std::string integer(int64_t value) {
  return "\x8a\x08" + std::string(reinterpret_cast<const char*>(&value), sizeof(value));  // LONG1
}

inline std::string text(const std::string& value) {
  const auto size = static_cast<uint32_t>(value.size());
  return "X" + std::string(reinterpret_cast<const char*>(&size), sizeof(size)) + value;  // BINUNICODE
}

inline std::string global(const std::string& module, const std::string& name) {
  return "c" + module + "\n" + name + "\n";
}

inline std::string tuple(const std::vector<std::string>& items) {
  std::string bytes = "(";
  for (const std::string& item : items) bytes += item;
  return bytes + "t";
}

inline std::string integers(const std::vector<int64_t>& values) {
  std::vector<std::string> items;
  for (const int64_t value : values) items.push_back(integer(value));
  return tuple(items);
}

inline std::string dict(const std::vector<std::pair<std::string, std::string>>& entries) {
  std::string bytes = "}(";
  for (const auto& [key, value] : entries) bytes += text(key) + value;
  return bytes + "u";
}

/// Pushes a dict with the keys 0, 1, 2, ...
inline std::string numbered(const std::vector<std::string>& values) {
  std::string bytes = "}(";
  for (size_t key = 0; key < values.size(); ++key) bytes += integer(static_cast<int64_t>(key)) + values[key];
  return bytes + "u";
}

inline std::string list(const std::vector<std::string>& items) {
  std::string bytes = "](";
  for (const std::string& item : items) bytes += item;
  return bytes + "e";
}

inline std::string call(const std::string& callee, const std::string& arguments) {
  return callee + arguments + "R";
}

/// Pushes a storage as torch.save writes it. `type`: for example "FloatStorage".
inline std::string storage(const std::string& type, const std::string& key, int64_t numel) {
  return tuple({text("storage"), global("torch", type), text(key), text("cpu"), integer(numel)}) + "Q";
}

inline std::string tensor(const std::string& storage, int64_t offset, const std::vector<int64_t>& shape,
                          const std::vector<int64_t>& strides) {
  return call(global("torch._utils", "_rebuild_tensor_v2"),
              tuple({storage, integer(offset), integers(shape), integers(strides), kFalse,
                     call(global("collections", "OrderedDict"), ")")}));
}

inline std::string whole(const std::string& value) {
  return "\x80\x02" + value + ".";
}

}  // namespace zerorun::testing::pickled
