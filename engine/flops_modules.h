// Which module of the model an operator belongs to, for the table of flops_profiler. C++ modules have no
// hooks that tell which of them runs, so this follows parameters: an operator that uses one belongs to its
// module, and what comes between belongs to the module around the last one ("h.0.attn" after
// "h.0.attn.c_attn"), as attention does. Backward follows autograd's nodes to the operators that made them.
//
// For the one step that is profiled. Not thread safe.
#pragma once

#include <ATen/core/Tensor.h>
#include <ATen/core/ivalue.h>

#include <cstdint>
#include <optional>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#include "engine/model.h"
#include "monitor/flops.h"

namespace zerorun {

class FlopsModules {
 public:
  explicit FlopsModules(const Model::NamedTensors& parameters);

  /// The place in the model that a thread has come to.
  struct Place {
    int module = 0;          // index into modules()
    bool is_inside = false;  // of an operator that uses a parameter of the module
  };
  /// Call this before an operator. Returns the place before it, if the operator uses a parameter.
  std::optional<Place> enter(c10::ArrayRef<const c10::IValue> inputs);
  /// Call this after such an operator, with what enter() has returned.
  void leave(Place before);
  /// Counts operations of the operator that runs now on this thread.
  void add_flops(size_t phase, int64_t flops);
  /// Modules that have parameters, and those around them, each before its own; the first one is the model.
  const std::vector<ModuleFlops>& modules() const { return modules_; }

 private:
  struct Thread {
    Place now;
    std::vector<std::pair<uint64_t, int>> history;  // from this number of autograd's on: the module
  };

  int add(const std::string& path);
  int of_operator() const;
  void note(Thread& thread, Place place);

  std::vector<ModuleFlops> modules_;
  std::vector<int> around_;  // by module: the module around it
  std::unordered_map<std::string, int> by_path_;
  std::unordered_map<const c10::TensorImpl*, int> of_parameter_;
  std::unordered_map<uint64_t, Thread> threads_;
};

}  // namespace zerorun
