// Functions with which the tests of doctor/ examine findings.
#pragma once

#include <algorithm>
#include <catch2/catch.hpp>
#include <iterator>
#include <string>

#include "doctor/finding.h"

namespace zerorun::testing {

/// The lines about `subject` as `zerorun doctor` prints them, without the two spaces before the first line.
inline std::string lines_about(const doctor::Findings& findings, const std::string& subject) {
  doctor::Findings some;
  std::ranges::copy_if(findings, std::back_inserter(some),
                       [&](const doctor::Finding& finding) { return finding.subject == subject; });
  const std::string text = to_text(some);
  return text.substr(std::min<size_t>(2, text.size()));
}

inline int count_of(const doctor::Findings& findings, doctor::Verdict verdict) {
  return static_cast<int>(std::ranges::count(findings, verdict, &doctor::Finding::verdict));
}

}  // namespace zerorun::testing
