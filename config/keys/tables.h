// The tables of configuration keys, one per file; config/key_table.h gives access to them. Constant data; any
// thread.
#pragma once

#include <span>

#include "config/key_fact.h"

namespace zerorun {

std::span<const KeyFact> run_keys();
std::span<const KeyFact> optimizer_keys();
std::span<const KeyFact> scheduler_keys();
std::span<const KeyFact> precision_keys();
std::span<const KeyFact> zero_keys();
std::span<const KeyFact> offload_keys();
std::span<const KeyFact> checkpoint_keys();
std::span<const KeyFact> monitoring_keys();
std::span<const KeyFact> data_keys();
std::span<const KeyFact> parallel_keys();

}  // namespace zerorun
