// Patterns of the names of modules and parameters. Pure functions; any thread.
#pragma once

#include <string_view>

namespace zerorun {

/// Whether `pattern` names `name`. Both consist of parts between dots, as many in one as in the other; "*"
/// stands for any one part: "h.*.mlp" names "h.3.mlp".
bool matches_name(std::string_view pattern, std::string_view name);

/// Whether `pattern` names a part of `name`, as transformers matches tensors to keep in fp32: "*" stands for
/// any characters, and the match may begin and end anywhere.
bool matches_anywhere(std::string_view pattern, std::string_view name);

}  // namespace zerorun
