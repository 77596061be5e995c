// The resolved configuration of a run. No LibTorch. Not modified after loading, so any thread may read it.
#pragma once

#include <cstdint>
#include <limits>
#include <map>
#include <optional>
#include <string>
#include <variant>
#include <vector>

#include "base/dtype.h"
#include "base/mesh_sizes.h"
#include "config/monitoring_config.h"

namespace zerorun {

/// Invariant: train_batch_size = micro_batch_size_per_gpu x gradient_accumulation_steps x number of data
/// ranks.
struct BatchConfig {
  int64_t train_batch_size = 1;
  int64_t micro_batch_size_per_gpu = 1;
  int64_t gradient_accumulation_steps = 1;
};

/// Adam, or AdamW if `decoupled`. In the file "Adam" means AdamW unless params.adam_w_mode is false, as in
/// DeepSpeed.
struct AdamConfig {
  static constexpr const char* name = "Adam";  // AdamW if decoupled
  double lr = 1e-3;
  double weight_decay = 0.0;
  double beta1 = 0.9;
  double beta2 = 0.999;
  double eps = 1e-8;
  bool bias_correction = true;
  bool amsgrad = false;
  bool decoupled = true;
  bool silently_decoupled = false;  // true if the file says "Adam" without adam_w_mode, so AdamW is used
  friend bool operator==(const AdamConfig&, const AdamConfig&) = default;
};

struct SgdConfig {
  static constexpr const char* name = "SGD";
  double lr = 1e-3;
  double weight_decay = 0.0;
  double momentum = 0.0;
  double dampening = 0.0;
  bool nesterov = false;
  friend bool operator==(const SgdConfig&, const SgdConfig&) = default;
};

/// lr and eps have the defaults of torch.optim.Adagrad.
struct AdagradConfig {
  static constexpr const char* name = "Adagrad";
  double lr = 1e-2;
  double weight_decay = 0.0;
  double eps = 1e-10;
  double lr_decay = 0.0;
  double initial_accumulator_value = 0.0;
  friend bool operator==(const AdagradConfig&, const AdagradConfig&) = default;
};

/// lr has the default of torch.optim.RMSprop.
struct RmspropConfig {
  static constexpr const char* name = "RMSprop";
  double lr = 1e-2;
  double weight_decay = 0.0;
  double eps = 1e-8;
  double alpha = 0.99;
  double momentum = 0.0;
  bool centered = false;
  friend bool operator==(const RmspropConfig&, const RmspropConfig&) = default;
};

struct LionConfig {
  static constexpr const char* name = "Lion";
  double lr = 1e-3;
  double weight_decay = 0.0;
  double beta1 = 0.9;
  double beta2 = 0.999;
  friend bool operator==(const LionConfig&, const LionConfig&) = default;
};

struct LambConfig {
  static constexpr const char* name = "Lamb";
  double lr = 1e-3;
  double weight_decay = 0.0;
  double beta1 = 0.9;
  double beta2 = 0.999;
  double eps = 1e-8;
  bool bias_correction = true;
  double max_coeff = 10.0;  // upper bound of the trust ratio
  double min_coeff = 0.01;  // lower bound of the trust ratio
  bool eps_inside_sqrt = false;
  friend bool operator==(const LambConfig&, const LambConfig&) = default;
};

/// The method by which Muon orthogonalizes matrices (optim/newton_schulz.h).
enum class NewtonSchulz { gram, standard };

struct MuonConfig {
  static constexpr const char* name = "Muon";
  double lr = 0.02;
  double weight_decay = 0.0;
  double momentum = 0.95;
  NewtonSchulz newton_schulz = NewtonSchulz::gram;
  bool per_head =
      false;         // attention heads are orthogonalized one by one (InitializeOptions::attention_heads)
  AdamConfig adamw;  // for the parameters that are updated by AdamW instead of Muon
  friend bool operator==(const MuonConfig&, const MuonConfig&) = default;
};

/// Each struct has only the hyperparameters that its optimizer uses, and the optimizer's name in
/// ds_config.json.
using OptimizerConfig =
    std::variant<AdamConfig, SgdConfig, AdagradConfig, RmspropConfig, LionConfig, LambConfig, MuonConfig>;

/// The optimizer's name in ds_config.json: "AdamW" if Adam is decoupled.
const char* name_of(const OptimizerConfig& optimizer);

enum class WarmupType { log, linear };

/// One value for all parameter groups, or a list with one value per group.
using PerGroup = std::variant<double, std::vector<double>>;

/// How the learning rate rises during the first `num_steps` optimizer steps.
struct Warmup {
  int64_t num_steps = 1000;  // 1 has the same effect as 2
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

/// The ratios are factors of each parameter group's own lr.
struct WarmupCosineLr {
  double min_ratio = 0.0;
  double cos_min_ratio = 0.0001;
  Warmup warmup = {};
  int64_t total_num_steps = 0;
  friend bool operator==(const WarmupCosineLr&, const WarmupCosineLr&) = default;
};

/// The learning rate rises, falls and then decays. The momentum (beta1) moves in the opposite direction.
struct OneCycle {
  PerGroup min_lr = 0.0;
  PerGroup max_lr = 0.0;
  int64_t first_step_size = 2000;                // optimizer steps in which the learning rate rises
  std::optional<int64_t> second_step_size = {};  // optimizer steps in which lr falls; absent: first_step_size
  int64_t first_stair_count = 0;                 // discrete steps of the rise; 0 or less: linear
  std::optional<int64_t> second_stair_count = {};  // discrete steps of the fall; absent: first_stair_count
  int64_t decay_step_size = 0;                     // optimizer steps per decay step; 0: no decay
  double decay_lr_rate = 0.0;
  bool cycle_momentum = true;  // has no effect on optimizers without betas
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

/// The formulas are in optim/schedule.h.
using SchedulerConfig = std::variant<WarmupLr, WarmupDecayLr, WarmupCosineLr, OneCycle, LrRangeTest>;

enum class OffloadDevice { none, cpu, nvme };

/// I/O settings for the files that hold offloaded state.
struct AioConfig {
  int64_t block_size = 1'048'576;  // bytes per request, at least
  int64_t queue_depth = 8;         // requests in flight, at most
  int64_t threads = 1;             // I/O threads, used if the kernel has no io_uring
};

struct OffloadOptimizerConfig {
  OffloadDevice device = OffloadDevice::none;
  std::string nvme_path = {};              // a folder
  int64_t buffer_count = 4;                // number of chunks that are in memory at a time
  int64_t sub_group_size = 1'000'000'000;  // elements per chunk, at most
  double ratio = 1;                        // fraction of the optimizer states to keep in files
};

struct OffloadParamConfig {
  OffloadDevice device = OffloadDevice::none;
  std::string nvme_path = {};          // a folder
  int64_t buffer_count = 5;            // number of slices that are in memory at a time
  int64_t max_in_cpu = 1'000'000'000;  // elements per rank that stay in memory, not in files
};

struct ZeroConfig {
  int stage = 0;
  int64_t reduce_bucket_size = 500'000'000;     // elements, at most
  int64_t allgather_bucket_size = 500'000'000;  // elements, at most
  bool overlap_comm = false;                    // default: true at stage 3, else false
  OffloadOptimizerConfig offload_optimizer = {};
  OffloadParamConfig offload_param = {};
  AioConfig aio = {};

  // The rest is for stage 3 only. All values are in elements.
  int64_t max_live_parameters = 1'000'000'000;    // gathered parameters at a time, at most
  int64_t max_reuse_distance = 1'000'000'000;     // release a bucket if its next use is farther away
  int64_t prefetch_bucket_size = 50'000'000;      // parameters gathered ahead of their use, at most
  int64_t param_persistence_threshold = 100'000;  // parameters of at most this size stay gathered
  /// Total size, at most, of the parameters that stay gathered because of param_persistence_threshold.
  int64_t model_persistence_threshold = std::numeric_limits<int64_t>::max();
  /// The number of neighbouring data ranks that keep second copies of partitioned parameters among them
  /// (zero/near_copies.h); 1: none.
  int hpz_partition_size = 1;
  bool quantized_weights = false;    // parameters are gathered in 8 bits (zero/quantized_gathers.h)
  bool quantized_gradients = false;  // gradients are sent in 8 bits (zero/quantized_reductions.h)
};

/// Loss scaling of fp16 training (optim/loss_scaler.h).
struct LossScaleConfig {
  std::optional<double> fixed = {};  // absent: dynamic loss scaling with the values below
  double initial = 65536;
  int64_t window = 1000;  // steps without overflow before the scale is doubled
  int64_t hysteresis = 2;
  bool consecutive_hysteresis = false;
  double minimum = 1;
};

struct PrecisionConfig {
  Dtype training = Dtype::fp32;       // dtype of the parameters in forward and backward
  Dtype communication = Dtype::fp32;  // dtype of gradients in collectives; default: `training`
  Dtype accumulation = Dtype::fp32;   // dtype in which gradients are accumulated over micro-batches
  std::optional<Dtype> buffers;       // dtype of the module's floating-point buffers; absent: left unchanged
  /// Patterns of the names of buffers that are fp32 all the same under 16-bit training (matches_anywhere() in
  /// base/name_pattern.h); absent: "auto".
  std::optional<std::vector<std::string>> fp32_buffers = {};
  bool master_from_fp32 = false;   // start master weights from the parameters' unrounded values
  Dtype master = Dtype::fp32;      // dtype of master weights; if it is `training`, parameters have none
  Dtype moments = Dtype::fp32;     // dtype of optimizer states: float32 or bfloat16
  bool moments_in_8_bits = false;  // of codes instead of numbers (device/moment_codes.h)
  /// The seed of the random numbers by which updates round to bfloat16; absent: they round to nearest.
  std::optional<int64_t> rounding_seed = {};
  bool auto_cast = false;      // Engine::cast_input() converts inputs to `training`
  bool autocast = false;       // forwards run under autocast, in bf16; parameters are fp32
  LossScaleConfig loss_scale;  // used for fp16 only

  bool has_narrow_states() const {
    return training != Dtype::fp32 && (master == training || moments != Dtype::fp32);
  }
};

/// Why the optimizer cannot update the bfloat16 weights or states, or the states in 8 bits, that `precision`
/// asks for; absent: it can.
std::optional<std::string> reason_against_narrow_states(const OptimizerConfig& optimizer,
                                                        const PrecisionConfig& precision);

/// What only the Python package uses.
struct PythonConfig {
  /// Modules that are gathered whole around their forward and backward.
  std::vector<std::string> leaf_classes = {};
  std::vector<std::string> leaf_names = {};
  std::vector<std::string> leaf_name_suffixes = {};
  bool gather_16bit_weights_on_model_save = false;  // for programs that ask: save_16bit_model() gathers
  bool disable_gc = false;  // Python's collector of reference cycles is off while the engine lives
};

struct PipelineConfig {
  enum class Partition { parameters, uniform };
  Partition partition = Partition::parameters;  // of layers among stages, if the program does not say it
  /// Stages 2 and 3: gradients are reduced at the end of a window, not after each micro-batch.
  bool reduces_by_window = false;
  int64_t recomputed_group = 0;  // a stage's layers are recomputed in groups of so many; 0: RecomputeConfig
};

/// Which marked blocks of the model are recomputed in backward (docs/recomputation.md), and where their
/// inputs are kept until then. At most one of the first three is set; none: nothing is recomputed.
struct RecomputeConfig {
  int64_t every = 0;                        // one of so many
  std::vector<std::string> patterns = {};   // names (base/name_pattern.h)
  std::optional<int64_t> budget = {};       // bytes that the marked blocks may keep for backward
  bool is_implied = false;                  // `every` is 1 because the file has activation_checkpointing
  bool partitioned = false;                 // each tensor rank keeps its part of the inputs
  bool on_host = false;                     // on a GPU, inputs are kept in host memory
  bool contiguous = false;                  // inputs are copied into one buffer
  std::optional<int64_t> checkpoints = {};  // how many it has room for; absent: as many as are kept first
  std::string nvme_path = {};               // folder of the file that keeps inputs; empty: memory keeps them
  bool timed = false;                       // log what recomputation costs
};

struct Config {
  BatchConfig batch;
  std::optional<OptimizerConfig> optimizer;
  std::optional<SchedulerConfig> scheduler;
  ZeroConfig zero;
  PrecisionConfig precision;
  double gradient_clipping = 1.0;  // 0: no clipping; 1.0 is also DeepSpeed's default
  std::optional<int64_t> steps_per_print;
  bool wall_clock_breakdown = false;
  MonitoringConfig monitoring;
  bool prescale_gradients = false;
  bool managed_gradient_accumulation = true;  // false: every step() is an optimizer step
  double gradient_predivide_factor = 1.0;
  bool average_gradients = true;        // true: average over ranks; false: sum
  bool node_local_checkpoints = false;  // hosts may have no common folder for checkpoints
  PipelineConfig pipeline;
  RecomputeConfig recompute;
  /// From zerorun.mesh, else LoadOptions::mesh; absent: all ranks are data ranks.
  std::optional<MeshSizes> mesh;
  /// Sums over CPU ranks are added in groups of so many ranks (Communicator::set_sum_group()); 0: the
  /// transport's choice.
  int sum_group = 0;
  /// Generations of state in memory (zerorun --hold_every) are written to the next host too.
  bool holds_at_partner = false;
  /// Messages about settings that do not take effect as written, one line each. Warnings are about features
  /// that are not supported, old names, and values in an unusual form. Notes are about settings without an
  /// effect, and values of "auto".
  std::vector<std::string> warnings;
  std::vector<std::string> notes;
  PythonConfig python;
  /// All settings with their values and origins, as `zerorun config show` prints them.
  std::string resolved;
};

/// Values for keys that are "auto" in the file, by path: {"optimizer.params.lr", 1e-4}.
using Arguments = std::map<std::string, std::variant<bool, int64_t, double, std::vector<double>>>;

struct LoadOptions {
  int world_size = 1;  // all ranks of the job
  /// The mesh that the program wants; it must be that of zerorun.mesh, if the file has one.
  std::optional<MeshSizes> mesh = {};
  Arguments arguments = {};  // used only for keys that are "auto" in the file
  /// The model's hidden size h, from which "auto" gets a value: reduce_bucket_size is h x h,
  /// stage3_prefetch_bucket_size is 0.9 h x h, and stage3_param_persistence_threshold is 10 h.
  std::optional<int64_t> hidden_size = {};
};

}  // namespace zerorun
