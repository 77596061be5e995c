// What rank 0 prints about a training run: tables of memory and traffic, and a summary.
#pragma once

#include <zerorun/engine.h>

#include <cstdint>
#include <string>

#include "samples/common/csv_log.h"

namespace samples {

/// Returns a table of the bytes on this rank by category. `formula_bytes` is the size of the model states by
/// the ZeRO paper's formula; the table compares it with the actual size.
std::string memory_table(const zerorun::BytesByCategory& bytes, double formula_bytes);

/// Reports the number of elements that this rank has sent per micro-step, in the ZeRO paper's unit of (N-1)/N
/// x parameters, and statistics of gathers. Needs more than one rank.
std::string traffic_report(zerorun::Engine& engine, int64_t parameters, int64_t micro_steps);

/// "9 steps in 0:12: loss 5.5096 -> 4.6073, 1898 tokens/s", with the number of skipped steps if there are
/// any.
std::string summary(const StepRecord& first, const StepRecord& last, int64_t tokens_per_step, double seconds);

}  // namespace samples
