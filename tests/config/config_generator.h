// Makes configurations, valid and invalid, out of the key table: the same ones in the same order at every
// run. Used by tests only, in one thread.
#pragma once

#include <functional>
#include <string>

namespace zerorun::test {

/// Calls `take` with each configuration.
void generate_configs(const std::function<void(const std::string&)>& take);

}  // namespace zerorun::test
