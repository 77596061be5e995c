// Lists of processors as Linux, taskset and DeepSpeed's --bind_core_list write them: "0-3,5". Pure.
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace zerorun {

/// The numbers in the list `text`, which must be in ascending order. Throws UserError otherwise; its message
/// begins with `name`, the file or option that has the list.
std::vector<int> parse_processor_list(std::string_view text, const std::string& name);

/// The shortest text for `processors`, which must be in ascending order; "" if there are none.
std::string processor_list(const std::vector<int>& processors);

}  // namespace zerorun
