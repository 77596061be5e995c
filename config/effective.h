// The settings that matter to a run: every supported key that applies, with its value and where the value
// comes from. Pure functions; any thread.
#pragma once

#include <string>
#include <vector>

#include "config/settings.h"

namespace zerorun {

struct EffectiveSetting {
  const KeyFact* fact = nullptr;
  std::string value;   // as JSON; "auto" in quotes where nobody has given the value
  std::string origin;  // where the value comes from, such as "line 7" or "default"
};

/// In the order of the key table; with `ineffective`, also the file's settings that have no effect. A key
/// does not apply if its optimizer or scheduler is absent or has another type, if it belongs to another
/// stage, or if its section is switched off.
std::vector<EffectiveSetting> effective_settings(const Settings& settings, bool ineffective = false);

}  // namespace zerorun
