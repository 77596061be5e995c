// What a ds_config.json may leave to the program by saying "auto", as flags. Owned by a program's main(); one
// thread.
#pragma once

#include <zerorun/config.h>

#include <CLI/CLI.hpp>
#include <cstdint>
#include <string>

namespace zerorun {

/// A program's defaults are the values that it starts from; the config's own values come first.
struct Hyperparameters {
  int64_t micro_batch = 8;  // of one rank
  int64_t accumulation = 1;
  double lr = 1e-3;
  double weight_decay = 0.0;
  int64_t warmup = 100;  // steps
  std::string precision = "fp32";

  /// --batch, --accumulation, --lr, --weight-decay, --warmup, --precision.
  void add_to(CLI::App& app);
  /// For every key to which only a program can give a value: the flags', and for a run of `steps` optimizer
  /// steps. Betas, eps and gradient clipping are those that DeepSpeed has.
  Arguments arguments(int64_t steps) const;
};

}  // namespace zerorun
