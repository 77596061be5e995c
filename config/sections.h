// How each section of ds_config.json becomes its part of Config: defaults, and rules that join several keys.
// Used by load_config only, in its thread. Each function reads from the reader of the top level and reports
// what is wrong.
#pragma once

#include <optional>

#include "config/config.h"
#include "config/section_reader.h"

namespace zerorun {

BatchConfig read_batch(SectionReader& top, int world_size);
std::optional<OptimizerConfig> read_optimizer(SectionReader& top);
std::optional<SchedulerConfig> read_scheduler(SectionReader& top);
ZeroConfig read_zero(SectionReader& top);

/// fp16 and bf16, which may be named but not enabled.
void read_precision(SectionReader& top);

}  // namespace zerorun
