// Gives tests the state of an engine that initialize() has made.
#pragma once

#include <memory>

#include "engine/engine.h"

namespace zerorun::testing {

std::shared_ptr<EngineState> state_of(const Engine& engine);

// An explicit instantiation may name private members.
template <EngineStateHandle Engine::*Member>
struct StateOf {
  friend std::shared_ptr<EngineState> state_of(const Engine& engine) { return engine.*Member; }
};
template struct StateOf<&Engine::state_>;

}  // namespace zerorun::testing
