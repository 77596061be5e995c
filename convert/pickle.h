// Reads a pickle as inert data. Classes and functions that it names are never looked up: an object is kept as
// the name of its class with arguments and state, so a pickle can run nothing. Supports the opcodes that
// pickle protocols 2 to 5 write for data; memory is at most kPickleMemoryFactor x the pickle. Values are
// plain; any thread may read them. https://github.com/python/cpython/blob/3.11/Lib/pickletools.py
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace zerorun {

inline constexpr int64_t kPickleMemoryFactor = 128;

enum class PickleKind {
  none,
  boolean,
  integer,
  large_integer,  // beyond 64 bits: text() has it in hexadecimal, two's complement, "0x..."
  real,
  text,
  bytes,
  list,
  tuple,
  set,
  dict,        // collections.OrderedDict too
  global,      // text(): "module.name"
  object,      // a call or a construction that was not carried out: callee(), arguments(), items()
  persistent,  // the value of a persistent id, which torch.save writes for storages: arguments()
};

class PickleArena;

/// One value of a pickle. Values may be shared and may contain themselves: whoever walks them must bound the
/// number of steps. The pickle must outlive it.
class PickleValue {
 public:
  PickleValue(const PickleArena& arena, uint32_t index) : arena_(&arena), index_(index) {}

  PickleKind kind() const;
  bool is(PickleKind expected) const { return kind() == expected; }
  /// Each needs that kind.
  bool boolean() const;
  int64_t integer() const;
  double real() const;
  const std::string& text() const;

  /// Of a list, tuple or set: its items. Of a dict: its keys and values, alternating. Of an object: what was
  /// appended to it or set in it.
  size_t size() const;
  PickleValue item(size_t index) const;
  /// The value of a dict's text key; the last one if the key appears twice. Linear in the dict.
  std::optional<PickleValue> find(std::string_view key) const;

  PickleValue callee() const;
  PickleValue arguments() const;
  /// What __setstate__ or __dict__ would get.
  std::optional<PickleValue> state() const;
  /// Whether it is an object whose callee is this global: "torch._utils._rebuild_tensor_v2".
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

}  // namespace zerorun
