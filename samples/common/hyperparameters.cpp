#include "samples/common/hyperparameters.h"

#include <CLI/CLI.hpp>
#include <algorithm>
#include <vector>

#if defined(__x86_64__)
#include <cpuid.h>
#endif

namespace samples {

std::string fast_precision() {
#if defined(__x86_64__)
  // AVX512_BF16 and AMX-BF16 (Intel's manual, volume 2, CPUID), which clang 14's builtin does not know.
  unsigned a = 0, b = 0, c = 0, d = 0;
  const bool has_avx512 = __builtin_cpu_supports("avx512f") != 0;
  if (has_avx512 && __get_cpuid_count(7, 1, &a, &b, &c, &d) != 0 && (a & 1U << 5) != 0) return "bf16";
  if (has_avx512 && __get_cpuid_count(7, 0, &a, &b, &c, &d) != 0 && (d & 1U << 22) != 0) return "bf16";
#endif
  return "fp32";
}

void Hyperparameters::add_to(CLI::App& app) {
  const std::string group = "Used only for keys that are \"auto\" in the ds_config.json";
  const CLI::Range count(int64_t{1}, int64_t{1} << 20);
  auto add = [&](const std::string& flag, auto& value, const CLI::Range& range, const std::string& meaning) {
    app.add_option(flag, value, meaning)->check(range)->group(group);
  };
  add("--batch", micro_batch, count, "samples per forward and backward on one rank");
  add("--accumulation", accumulation, count, "micro-steps per optimizer step");
  add("--lr", lr, CLI::NonNegativeNumber, "learning rate, after the warm-up if there is one");
  add("--weight-decay", weight_decay, CLI::NonNegativeNumber, "weight decay");
  add("--warmup", warmup, count, "optimizer steps of the warm-up");
  app.add_option("--precision", precision,
                 "of parameters and activations; auto: what is fast on this processor")
      ->check(CLI::IsMember({"fp32", "bf16", "fp16", "auto"}))
      ->group(group);
}

zerorun::Arguments Hyperparameters::arguments(int64_t steps) const {
  const std::string chosen = precision == "auto" ? fast_precision() : precision;
  return {
      {"train_micro_batch_size_per_gpu", micro_batch},
      {"gradient_accumulation_steps", accumulation},
      {"gradient_clipping", 1.0},
      {"optimizer.params.lr", lr},
      {"optimizer.params.betas", std::vector<double>{0.9, 0.999}},
      {"optimizer.params.eps", 1e-8},
      {"optimizer.params.weight_decay", weight_decay},
      {"scheduler.params.warmup_min_lr", 0.0},
      {"scheduler.params.warmup_max_lr", lr},
      {"scheduler.params.warmup_num_steps", warmup},
      {"scheduler.params.total_num_steps", std::max<int64_t>(steps, 1)},
      {"fp16.enabled", chosen == "fp16"},
      {"bf16.enabled", chosen == "bf16"},
      {"checkpoint.use_node_local_storage", false},
  };
}

}  // namespace samples
