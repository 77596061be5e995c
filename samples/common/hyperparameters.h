// Command-line flags for the values that a ds_config.json leaves to the program ("auto"). Owned by a
// program's main() and used by one thread.
#pragma once

#include <zerorun/config.h>

#include <cstdint>
#include <string>

namespace CLI {
class App;
}

namespace samples {

/// The precision in which this processor multiplies matrices fastest: "bf16" if it has instructions for it
/// (AMX or AVX-512), else "fp32". GPUs are not considered.
std::string fast_precision();

/// The values that the members have when add_to() is called are the defaults of the flags. Values in the
/// config take precedence over flags.
struct Hyperparameters {
  int64_t micro_batch = 8;  // samples of a rank per micro-step
  int64_t accumulation = 1;
  double lr = 1e-3;
  double weight_decay = 0.0;
  int64_t warmup = 100;            // optimizer steps
  std::string precision = "fp32";  // fp32, bf16, fp16, or auto: fast_precision()

  /// Adds --batch, --accumulation, --lr, --weight-decay, --warmup and --precision.
  void add_to(CLI::App& app);
  /// Returns values for every "auto" key that only a program can fill in, for a run of `steps` optimizer
  /// steps. They come from the flags, except that betas, eps and gradient clipping are DeepSpeed's defaults.
  zerorun::Arguments arguments(int64_t steps) const;
};

}  // namespace samples
