// Catch2's header for machines with Catch2 3 (tests/CMakeLists.txt puts this folder into the include path
// there). The tests are written for version 2, which has everything in a header of this name. In version 3
// Contains is a matcher of ranges, which no test uses, and the matcher of strings has another name.
#pragma once

#include <catch2/catch_approx.hpp>
#include <catch2/catch_message.hpp>
#include <catch2/catch_session.hpp>
#include <catch2/catch_template_test_macros.hpp>
#include <catch2/catch_test_macros.hpp>
#include <catch2/catch_tostring.hpp>
#include <catch2/generators/catch_generators_all.hpp>
#include <catch2/matchers/catch_matchers.hpp>
#include <catch2/matchers/catch_matchers_exception.hpp>
#include <catch2/matchers/catch_matchers_string.hpp>

namespace Catch {
namespace Matchers {

inline StringContainsMatcher Contains(const std::string& text, CaseSensitive sensitive = CaseSensitive::Yes) {
  return ContainsSubstring(text, sensitive);
}

namespace StdString {
using ContainsMatcher = StringContainsMatcher;
}  // namespace StdString

}  // namespace Matchers

using Matchers::Contains;
using Matchers::EndsWith;
using Matchers::StartsWith;

}  // namespace Catch

using Catch::Approx;
