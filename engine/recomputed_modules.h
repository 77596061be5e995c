// The blocks that a budget of recomputation chooses, for a front end that recomputes blocks by itself. Used
// by the thread that runs them.
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "engine/engine.h"

namespace zerorun {

class RecomputedModules {
 public:
  /// The engine's config must have a budget ([Note: budget] in activations/recomputation.h).
  explicit RecomputedModules(Engine& engine);

  /// Whether the block is recomputed. Call it before the block's forward, in the order of blocks.
  bool chooses(const std::string& name) const;
  /// Whether recomputations are still to be measured.
  bool measures() const;
  /// What a recomputation has cost: bytes of inputs, bytes kept for backward besides, seconds.
  void add(const std::string& name, int64_t inputs, int64_t activations, double seconds) const;

 private:
  std::shared_ptr<EngineState> state_;
};

}  // namespace zerorun
