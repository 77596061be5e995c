// The tables of configuration keys, one per file, for config/key_table.cpp. Constant data; any thread.
#pragma once

#include <span>

#include "config/key_fact.h"

namespace zerorun::config::keys {

extern const std::span<const KeyFact> run, optimizer, scheduler, zero, offload, precision, checkpoint,
    activations, monitoring, data, parallel;

}  // namespace zerorun::config::keys
