// The files that are part of every page of `zerorun report`, in the program (CMakeLists.txt, embed.cmake).
#pragma once

#include <string_view>

namespace zerorun {

extern const std::string_view kPageStyle;
extern const std::string_view kPageScript;
/// Those of dygraphs are empty if it was not found when this was built.
extern const std::string_view kDygraphsStyle;
extern const std::string_view kDygraphsScript;
extern const std::string_view kSynchronizerScript;
extern const std::string_view kDygraphsLicence;

}  // namespace zerorun
