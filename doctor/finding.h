// One line that `zerorun doctor` prints: what was found, whether it is good, and what to do if it is not.
// Plain values; any thread.
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <string>
#include <vector>

namespace zerorun::doctor {

enum class Verdict { ok, note, problem };

struct Finding {
  Verdict verdict = Verdict::ok;
  std::string subject;      // "open files"
  std::string text;         // "20000 in this process"
  std::string remedy = {};  // what to do; empty if nothing is to be done
};

using Findings = std::vector<Finding>;

/// A line for each finding: verdict, subject, text, remedy.
std::string to_text(const Findings& findings);
bool has_problem(const Findings& findings);

nlohmann::ordered_json to_json(const Findings& findings);
/// Throws nlohmann::json::exception if `json` is not what to_json() returns.
Findings findings_from_json(const nlohmann::ordered_json& json);

/// "96.4 GiB", "512 B".
std::string bytes_text(double bytes);

}  // namespace zerorun::doctor
