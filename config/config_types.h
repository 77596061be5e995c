// The fully resolved configuration of a run. No LibTorch; immutable after loading by convention, so any
// thread may read it.
#pragma once

#include <cstdint>
#include <limits>
#include <map>
#include <optional>
#include <string>
#include <variant>
#include <vector>

#include "base/dtype.h"

namespace zerorun {

/// train_batch_size = micro_batch_size_per_gpu x gradient_accumulation_steps x world size, always.
struct BatchConfig {
  int64_t train_batch_size = 1;
  int64_t micro_batch_size_per_gpu = 1;
  int64_t gradient_accumulation_steps = 1;
};

/// Adam, or AdamW if weight decay is decoupled from the gradient. "Adam" means AdamW unless
/// params.adam_w_mode is false, as in DeepSpeed.
struct AdamConfig {
  double lr = 1e-3;
  double weight_decay = 0.0;
  double beta1 = 0.9;
  double beta2 = 0.999;
  double eps = 1e-8;
  bool bias_correction = true;
  bool amsgrad = false;
  bool decoupled = true;
  bool silently_decoupled = false;  // the file says "Adam" without adam_w_mode
  friend bool operator==(const AdamConfig&, const AdamConfig&) = default;
};

struct SgdConfig {
  double lr = 1e-3;
  double weight_decay = 0.0;
  double momentum = 0.0;
  double dampening = 0.0;
  bool nesterov = false;
  friend bool operator==(const SgdConfig&, const SgdConfig&) = default;
};

/// The defaults of lr and eps are torch.optim's; DeepSpeed's own optimizers have 1e-3 and 1e-8.
struct AdagradConfig {
  double lr = 1e-2;
  double weight_decay = 0.0;
  double eps = 1e-10;
  double lr_decay = 0.0;
  double initial_accumulator_value = 0.0;
  friend bool operator==(const AdagradConfig&, const AdagradConfig&) = default;
};

/// The default lr is torch.optim's.
struct RmspropConfig {
  double lr = 1e-2;
  double weight_decay = 0.0;
  double eps = 1e-8;
  double alpha = 0.99;
  double momentum = 0.0;
  bool centered = false;
  friend bool operator==(const RmspropConfig&, const RmspropConfig&) = default;
};

struct LionConfig {
  double lr = 1e-3;
  double weight_decay = 0.0;
  double beta1 = 0.9;
  double beta2 = 0.999;
  friend bool operator==(const LionConfig&, const LionConfig&) = default;
};

struct LambConfig {
  double lr = 1e-3;
  double weight_decay = 0.0;
  double beta1 = 0.9;
  double beta2 = 0.999;
  double eps = 1e-8;
  bool bias_correction = true;
  double max_coeff = 10.0;  // bounds of the trust ratio
  double min_coeff = 0.01;
  bool eps_inside_sqrt = false;
  friend bool operator==(const LambConfig&, const LambConfig&) = default;
};

/// How Muon orthogonalizes matrices (optim/newton_schulz.h).
enum class NewtonSchulz { gram, standard };

struct MuonConfig {
  double lr = 0.02;
  double weight_decay = 0.0;
  double momentum = 0.95;
  NewtonSchulz newton_schulz = NewtonSchulz::gram;
  AdamConfig adamw;  // for the parameters that AdamW updates
  friend bool operator==(const MuonConfig&, const MuonConfig&) = default;
};

/// Each struct has only the hyperparameters that its optimizer uses: betas, eps, momentum.
using OptimizerConfig =
    std::variant<AdamConfig, SgdConfig, AdagradConfig, RmspropConfig, LionConfig, LambConfig, MuonConfig>;

/// The optimizer's name as ds_config.json spells it.
const char* name_of(const OptimizerConfig& optimizer);

enum class WarmupType { log, linear };

/// One value for all parameter groups, or a list with one for each.
using PerGroup = std::variant<double, std::vector<double>>;

/// How the learning rate rises in the first `num_steps` optimizer steps.
struct Warmup {
  int64_t num_steps = 1000;  // 1 acts as 2
  WarmupType type = WarmupType::log;
  friend bool operator==(const Warmup&, const Warmup&) = default;
};

struct WarmupLr {
  PerGroup min_lr = 0.0;
  std::optional<PerGroup> max_lr = {};  // absent: each parameter group's own lr
  Warmup warmup = {};
  friend bool operator==(const WarmupLr&, const WarmupLr&) = default;
};

struct WarmupDecayLr {
  PerGroup min_lr = 0.0;
  PerGroup max_lr = 0.001;
  Warmup warmup = {};
  int64_t total_num_steps = 0;
  friend bool operator==(const WarmupDecayLr&, const WarmupDecayLr&) = default;
};

/// Ratios are relative to each parameter group's own lr.
struct WarmupCosineLr {
  double min_ratio = 0.0;
  double cos_min_ratio = 0.0001;
  Warmup warmup = {};
  int64_t total_num_steps = 0;
  friend bool operator==(const WarmupCosineLr&, const WarmupCosineLr&) = default;
};

/// The learning rate rises, falls, then decays; the momentum (beta1) moves the other way.
struct OneCycle {
  PerGroup min_lr = 0.0;
  PerGroup max_lr = 0.0;
  int64_t first_step_size = 2000;                  // optimizer steps of the rise
  std::optional<int64_t> second_step_size = {};    // of the fall; absent: as many as the rise
  int64_t first_stair_count = 0;                   // stairs of the rise; 0 or less: linear
  std::optional<int64_t> second_stair_count = {};  // stairs of the fall; absent: as many as the rise
  int64_t decay_step_size = 0;                     // 0: no decay
  double decay_lr_rate = 0.0;
  bool cycle_momentum = true;  // only for optimizers with betas
  PerGroup min_mom = 0.8;
  PerGroup max_mom = 0.9;
  double decay_mom_rate = 0.0;
  friend bool operator==(const OneCycle&, const OneCycle&) = default;
};

struct LrRangeTest {
  PerGroup min_lr = 0.001;
  int64_t step_size = 2000;
  double step_rate = 1.0;
  bool staircase = false;
  friend bool operator==(const LrRangeTest&, const LrRangeTest&) = default;
};

/// optim/schedule.h defines each of them.
using SchedulerConfig = std::variant<WarmupLr, WarmupDecayLr, WarmupCosineLr, OneCycle, LrRangeTest>;

enum class OffloadDevice { none, cpu, nvme };

/// I/O of the files with offloaded state.
struct AioConfig {
  int64_t block_size = 1'048'576;  // minimum bytes per request
  int64_t queue_depth = 8;         // maximum requests in flight
  int64_t threads = 1;             // I/O threads, used if the kernel offers no io_uring
};

struct OffloadOptimizerConfig {
  OffloadDevice device = OffloadDevice::none;
  std::string nvme_path = {};              // a folder
  int64_t buffer_count = 4;                // chunks in memory at a time, one buffer each
  int64_t sub_group_size = 1'000'000'000;  // maximum elements per chunk
  double ratio = 1;                        // fraction of the optimizer states that is kept in files
};

struct OffloadParamConfig {
  OffloadDevice device = OffloadDevice::none;
  std::string nvme_path = {};          // a folder
  int64_t buffer_count = 5;            // slices in memory at a time, one buffer each
  int64_t max_in_cpu = 1'000'000'000;  // elements of its slices that a rank keeps in memory even so
};

struct ZeroConfig {
  int stage = 0;
  int64_t reduce_bucket_size = 500'000'000;     // elements, an upper bound
  int64_t allgather_bucket_size = 500'000'000;  // elements, an upper bound
  bool overlap_comm = false;                    // when left out: true at stage 3, else false
  OffloadOptimizerConfig offload_optimizer = {};
  OffloadParamConfig offload_param = {};
  AioConfig aio = {};

  // Stage 3 only, all in elements.
  int64_t max_live_parameters = 1'000'000'000;    // upper bound of what is gathered at a time
  int64_t max_reuse_distance = 1'000'000'000;     // a bucket whose next use is no further away stays gathered
  int64_t prefetch_bucket_size = 50'000'000;      // upper bound of what is gathered ahead of its use
  int64_t param_persistence_threshold = 100'000;  // parameters up to this size stay gathered
  int64_t model_persistence_threshold = std::numeric_limits<int64_t>::max();  // upper bound of their sum
};

/// Loss scaling under fp16 training (optim/loss_scaler.h).
struct LossScaleConfig {
  std::optional<double> fixed = {};  // absent: dynamic loss scaling with the values below
  double initial = 65536;
  int64_t window = 1000;  // steps without overflow before it doubles
  int64_t hysteresis = 2;
  bool consecutive_hysteresis = false;
  double minimum = 1;
};

struct PrecisionConfig {
  Dtype training = Dtype::fp32;       // dtype of the parameters in forward and backward
  Dtype communication = Dtype::fp32;  // dtype of gradients in collectives; by default that of training
  Dtype accumulation = Dtype::fp32;   // dtype in which gradients are accumulated over micro-steps
  std::optional<Dtype> buffers;       // dtype of the module's floating-point buffers; absent: unchanged
  bool master_from_fp32 = false;      // master weights start from the parameters before rounding
  bool auto_cast = false;             // Engine::cast_input() converts to the dtype of training
  LossScaleConfig loss_scale;         // fp16 only
};

struct Config {
  BatchConfig batch;
  std::optional<OptimizerConfig> optimizer;
  std::optional<SchedulerConfig> scheduler;
  ZeroConfig zero;
  PrecisionConfig precision;
  double gradient_clipping = 1.0;  // 0 turns it off; DeepSpeed's default when omitted is 1.0
  std::optional<int64_t> steps_per_print;
  bool wall_clock_breakdown = false;
  bool prescale_gradients = false;
  bool managed_gradient_accumulation = true;  // if false, every step() is an optimizer step
  double gradient_predivide_factor = 1.0;
  bool average_gradients = true;  // over ranks; false: summed
  /// Settings that are not taken literally, one line each. Warnings: features that are not offered, old
  /// names, values in an unusual form. Notes: settings that change nothing here, values of "auto".
  std::vector<std::string> warnings;
  std::vector<std::string> notes;
  /// Every setting with its value and where it comes from, as `zerorun config show` prints them.
  std::string resolved;
};

/// Values for keys that say "auto", by the path of the key: {"optimizer.params.lr", 1e-4}.
using Arguments = std::map<std::string, std::variant<bool, int64_t, double, std::vector<double>>>;

struct LoadOptions {
  int world_size = 1;
  Arguments arguments = {};  // used only for keys that say "auto"
  /// The model's hidden size h. It gives an "auto" its value: reduce_bucket_size h x h,
  /// stage3_prefetch_bucket_size 0.9 h x h, stage3_param_persistence_threshold 10 h.
  std::optional<int64_t> hidden_size = {};
};

}  // namespace zerorun
