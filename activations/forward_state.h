// What a forward depends on besides its inputs: the random generators, and autocast. Recomputation restores
// both, so that it computes the same bits. Plain values; the functions concern the calling thread and the
// process's default generators.
#pragma once

#include <ATen/core/Tensor.h>

#include <array>
#include <optional>
#include <vector>

#include "zero/cast_watch.h"

namespace zerorun {

/// The states of the default generators of the CPU and of some GPUs.
class GeneratorStates {
 public:
  /// The present states. `devices`: GPUs; CPUs are ignored.
  explicit GeneratorStates(const std::vector<c10::Device>& devices);
  void restore() const;
  /// Whether the generators are in the same states now.
  bool are_current() const;

 private:
  std::vector<std::pair<c10::Device, at::Tensor>> states_;
};

/// Autocast's settings of a thread.
class AutocastState {
 public:
  /// Those of the calling thread.
  AutocastState();
  void apply() const;
  bool enabled() const;
  /// Switches it on for devices of this type.
  void enable(c10::DeviceType type, c10::ScalarType dtype);

 private:
  struct OfDevice {
    c10::DeviceType type;
    bool enabled;
    c10::ScalarType dtype;
  };
  std::array<OfDevice, 2> devices_;
  bool caches_;  // copies of parameters
};

/// During its lifetime autocast is as in `state`, without the copies of parameters that the thread has
/// cached: those belong to graphs that are differentiated elsewhere.
class AutocastScope {
 public:
  explicit AutocastScope(const AutocastState& state);
  ~AutocastScope();
  AutocastScope(const AutocastScope&) = delete;
  AutocastScope& operator=(const AutocastScope&) = delete;

 private:
  AutocastState outer_;
  std::optional<CastWatch> watch_;  // [Note: cast copies]
};

/// During its lifetime autocast caches no copies of parameters. For a forward without gradients: a later use
/// of a copy that it has made would have none either.
class AutocastCacheOff {
 public:
  AutocastCacheOff();
  ~AutocastCacheOff();
  AutocastCacheOff(const AutocastCacheOff&) = delete;
  AutocastCacheOff& operator=(const AutocastCacheOff&) = delete;

 private:
  bool was_enabled_;
};

}  // namespace zerorun
