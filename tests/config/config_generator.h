// Generates configurations, valid and invalid, from the key table: the same ones in the same order in every
// run. For tests only, in one thread.
#pragma once

#include <functional>
#include <string>

namespace zerorun::test {

/// Calls `take` with each configuration.
void generate_configs(const std::function<void(const std::string&)>& take);

}  // namespace zerorun::test
