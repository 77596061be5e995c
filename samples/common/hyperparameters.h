// Flags for values that a ds_config.json leaves to the program by saying "auto". Owned by a program's main();
// one thread.
#pragma once

#include <zerorun/config.h>

#include <CLI/CLI.hpp>
#include <cstdint>
#include <string>

namespace zerorun {

/// The precision in which this processor multiplies matrices fastest: "bf16" if it has instructions for it
/// (AMX or AVX-512), else "fp32". Knows nothing of GPUs.
std::string fast_precision();

/// The flags' defaults are the values that the program sets here. Values in the config take precedence.
struct Hyperparameters {
  int64_t micro_batch = 8;  // of one rank
  int64_t accumulation = 1;
  double lr = 1e-3;
  double weight_decay = 0.0;
  int64_t warmup = 100;            // steps
  std::string precision = "fp32";  // fp32, bf16, fp16, or auto: fast_precision()

  /// --batch, --accumulation, --lr, --weight-decay, --warmup, --precision.
  void add_to(CLI::App& app);
  /// Values for every key that only a program can fill in: those of the flags, for a run of `steps` optimizer
  /// steps. Betas, eps and gradient clipping are DeepSpeed's defaults.
  Arguments arguments(int64_t steps) const;
};

}  // namespace zerorun
