// Patterns of the names of modules and parameters. Pure functions; any thread.
#pragma once

#include <string_view>

namespace zerorun {

/// Whether `pattern` names `name`. Both consist of parts between dots, as many in one as in the other; "*"
/// stands for any one part: "h.*.mlp" names "h.3.mlp".
bool matches_name(std::string_view pattern, std::string_view name);

}  // namespace zerorun
