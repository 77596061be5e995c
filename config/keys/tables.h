// The tables of configuration keys, one per file; config/key_table.h gives access to them. Constant data; any
// thread.
#pragma once

#include <span>

#include "config/key_fact.h"

namespace zerorun::keys {

extern const std::span<const KeyFact> run, optimizer, scheduler, zero, offload, precision, checkpoint,
    monitoring, data, parallel;

}  // namespace zerorun::keys
