// Lists of processors as Linux, taskset and DeepSpeed's --bind_core_list write them: "0-3,5". Pure.
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace zerorun {

/// The numbers of a list that rises without overlap. Throws UserError that begins with `name`, which is where
/// the list comes from.
std::vector<int> parse_processor_list(std::string_view text, const std::string& name);

/// The shortest list of `processors`, which rise; "" if there are none.
std::string processor_list(const std::vector<int>& processors);

}  // namespace zerorun
