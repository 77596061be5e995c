// Any of the optimizers' formulas.
#pragma once

#include <variant>

#include "device/update_rules.h"

namespace zerorun {

struct UpdateRule : std::variant<AdamUpdate, SgdUpdate, MomentumUpdate, LionUpdate, AmsgradUpdate,
                                 AdagradUpdate, RmspropUpdate, CenteredRmspropUpdate, RmspropMomentumUpdate,
                                 CenteredRmspropMomentumUpdate, LambDirection> {
  using variant::variant;
};

}  // namespace zerorun
