// The settings that matter to a run: every supported key that applies, with its value and where that comes
// from. Pure functions; any thread.
#pragma once

#include <string>
#include <vector>

#include "config/settings.h"

namespace zerorun {

struct EffectiveSetting {
  const KeyFact* fact = nullptr;
  std::string value;                 // as JSON; "auto" in quotes where nobody has given the value
  const Setting* setting = nullptr;  // null: the default of the table
};

/// In the order of the key table; with `ineffective`, also what the file says and has no effect. Keys of an
/// absent optimizer or scheduler, of another type of them, of another stage, or of a section that is switched
/// off do not apply.
std::vector<EffectiveSetting> effective_settings(const Settings& settings, bool ineffective = false);

/// Where the value comes from, such as "line 7" or "default".
std::string origin_of(const EffectiveSetting& effective);

}  // namespace zerorun
