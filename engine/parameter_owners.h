// Which engine of the process has a parameter in its buckets: the one that was made last. An engine from
// which a parameter has been taken is told so, because its hooks and marks would disturb the new one. Owned
// by EngineState; any thread.
#pragma once

#include <functional>
#include <span>
#include <vector>

#include "zero/buckets.h"

namespace zerorun {

class OwnedParameters {
 public:
  /// Takes the parameters from the engines that have them. `lost`: called when another engine takes one of
  /// them from this object, with its index, at most once for each; called on the thread that makes the other
  /// engine, under a lock, so it may make or destroy no engine.
  OwnedParameters(std::span<const NamedParameter> parameters, std::function<void(int)> lost);
  ~OwnedParameters();
  OwnedParameters(const OwnedParameters&) = delete;
  OwnedParameters& operator=(const OwnedParameters&) = delete;

 private:
  std::vector<at::Tensor> parameters_;  // keeps them, so that their addresses are not used again
  std::function<void(int)> lost_;
};

}  // namespace zerorun
