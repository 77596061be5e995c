// Reads a pickle as plain data. Classes and functions are never looked up: an object is kept as the name of
// its class with its arguments and state, so a pickle cannot run code. Supports the opcodes that pickle
// protocols 2 to 5 write for data. Memory is at most kPickleMemoryFactor times the pickle's size. Values may
// be read by any thread. https://github.com/python/cpython/blob/3.11/Lib/pickletools.py
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace zerorun::convert {

inline constexpr int64_t kPickleMemoryFactor = 128;

enum class PickleKind {
  none,
  boolean,
  integer,
  large_integer,  // more than 64 bits; text() is "0x..." with the two's complement in hexadecimal
  real,
  text,
  bytes,
  list,
  tuple,
  set,
  dict,        // or collections.OrderedDict
  global,      // text(): "module.name"
  object,      // a call or construction, which is not executed: callee(), arguments(), state(), item()
  persistent,  // a persistent id, which torch.save writes for a storage: arguments()
};

class PickleArena;

/// One value of a pickle. A value may be shared, and may contain itself, so code that traverses values must
/// limit the number of steps. The Pickle must outlive its values.
class PickleValue {
 public:
  PickleValue(const PickleArena& arena, uint32_t index) : arena_(&arena), index_(index) {}

  PickleKind kind() const;
  bool is(PickleKind expected) const { return kind() == expected; }
  /// Each of these functions requires a value of its kind.
  bool boolean() const;
  int64_t integer() const;
  double real() const;
  const std::string& text() const;

  /// The items of a list, tuple or set. For a dict these are the keys and values, alternating. For an object
  /// they are the items that the pickle appends to the object or sets in it.
  size_t size() const;
  PickleValue item(size_t index) const;
  /// Returns the value that a dict has for a text key. If the key appears twice, its last value is returned.
  /// Takes time linear in the dict's size.
  std::optional<PickleValue> find(std::string_view key) const;

  PickleValue callee() const;
  PickleValue arguments() const;
  /// Returns the state of an object, which Python would pass to __setstate__ or store in __dict__.
  std::optional<PickleValue> state() const;
  /// Whether this is an object whose callee is `global`, such as "torch._utils._rebuild_tensor_v2".
  bool calls(std::string_view global) const;

 private:
  const PickleArena* arena_;
  uint32_t index_;
};

class Pickle {
 public:
  /// Throws UserError naming `place` and the offset in the pickle.
  Pickle(std::span<const std::byte> bytes, const std::string& place);
  ~Pickle();
  Pickle(Pickle&&) noexcept;
  Pickle& operator=(Pickle&&) noexcept;

  PickleValue root() const;

 private:
  std::unique_ptr<PickleArena> arena_;
  uint32_t root_ = 0;
};

}  // namespace zerorun::convert
