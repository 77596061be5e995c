// Generates valid and invalid configurations from the key table. Every run generates the same configurations
// in the same order. For tests only, in one thread.
#pragma once

#include <functional>
#include <string>

namespace zerorun::test {

/// Calls `take` with each configuration.
void generate_configs(const std::function<void(const std::string&)>& take);

}  // namespace zerorun::test
