#include "config/key_table.h"

#include "config/deepspeed_keys.h"

namespace zerorun {
namespace {

using enum KeyKind;

constexpr Range at_least_0 = {.min = 0};
constexpr Range at_least_1 = {.min = 1};
constexpr Range above_0 = {.min = 0, .above_min = true};
constexpr Range from_0_below_1 = {.min = 0, .max = 1, .below_max = true};

constexpr std::string_view buckets_reason =
    "gradients always travel in contiguous buckets by reduce-scatter, parameters by all-gather";
constexpr std::string_view stage3_reason = "parameters are divided at stage 3 only";
constexpr std::string_view elements_1e9_advice = "write a number of elements, or leave the key out for 1e9";
constexpr std::string_view batch_advice =
    "write a positive integer, or leave the key out if the other two batch sizes give it";

// The types of optimizer.params and scheduler.params are those of optimizer.type and scheduler.type.
constexpr KeyFact offered[] = {
    {.path = "train_batch_size",
     .kind = integer,
     .range = at_least_1,
     .nullable = true,
     .advice = batch_advice},
    {.path = "train_micro_batch_size_per_gpu",
     .kind = integer,
     .range = at_least_1,
     .nullable = true,
     .advice = batch_advice},
    {.path = "gradient_accumulation_steps",
     .kind = integer,
     .range = at_least_1,
     .nullable = true,
     .advice = batch_advice},
    {.path = "gradient_clipping",
     .kind = number,
     .range = at_least_0,
     .advice = "write the largest gradient norm, 0 for no clipping, or leave the key out for 1.0"},
    {.path = "steps_per_print",
     .kind = integer,
     .range = at_least_1,
     .nullable = true,
     .advice =
         "write the number of steps between two lines, or leave the key out for the program's own choice"},
    {.path = "wall_clock_breakdown", .kind = boolean},
    {.path = "prescale_gradients", .kind = boolean},
    {.path = "gradient_predivide_factor", .kind = number, .range = above_0},
    {.path = "zero_allow_untested_optimizer",
     .kind = boolean,
     .usual = false,
     .reason = "no optimizer needs this permission here"},

    {.path = "optimizer", .kind = section, .nullable = true},
    {.path = "optimizer.type",
     .kind = choice,
     .choices = "Adam AdamW SGD",
     .any_case = "Adam AdamW",
     .not_yet =
         "Lamb Adagrad Lion Muon OneBitAdam OneBitLamb ZeroOneAdam MuAdam MuAdamW MuSGD Adadelta Adamax "
         "ASGD LBFGS NAdam RAdam RMSprop Rprop SparseAdam Adafactor",
     .advice = "write Adam, AdamW or SGD"},
    {.path = "optimizer.params", .kind = section},
    {.path = "optimizer.params.lr",
     .kind = number,
     .range = at_least_0,
     .advice = "write the learning rate, such as 1e-3"},
    {.path = "optimizer.params.weight_decay",
     .kind = number,
     .range = at_least_0,
     .advice = "write the weight decay, 0 for none"},
    {.path = "optimizer.params.betas",
     .kind = number_pair,
     .range = from_0_below_1,
     .types = "Adam AdamW",
     .advice = "write two numbers such as [0.9, 0.999]"},
    {.path = "optimizer.params.eps",
     .kind = number,
     .range = at_least_0,
     .types = "Adam AdamW",
     .advice = "write a small number such as 1e-8"},
    {.path = "optimizer.params.bias_correction", .kind = boolean, .types = "Adam AdamW"},
    {.path = "optimizer.params.adam_w_mode", .kind = boolean, .types = "Adam AdamW"},
    {.path = "optimizer.params.torch_adam", .kind = boolean, .types = "Adam AdamW"},
    {.path = "optimizer.params.amsgrad", .kind = boolean, .types = "Adam AdamW", .only = false},
    {.path = "optimizer.params.fused",
     .kind = boolean,
     .nullable = true,
     .usual = false,
     .reason = "every optimizer here is one fused pass"},
    {.path = "optimizer.params.set_grad_none",
     .kind = boolean,
     .types = "Adam AdamW",
     .usual = true,
     .reason = "the engine releases gradients, not the optimizer"},
    {.path = "optimizer.params.momentum", .kind = number, .range = at_least_0, .types = "SGD"},
    {.path = "optimizer.params.dampening", .kind = number, .types = "SGD"},
    {.path = "optimizer.params.nesterov", .kind = boolean, .types = "SGD"},

    {.path = "scheduler", .kind = section, .nullable = true},
    {.path = "scheduler.type",
     .kind = choice,
     .choices = "WarmupLR WarmupDecayLR",
     .not_yet = "WarmupCosineLR OneCycle LRRangeTest",
     .advice = "write WarmupLR or WarmupDecayLR"},
    {.path = "scheduler.params", .kind = section},
    {.path = "scheduler.params.warmup_min_lr",
     .kind = number,
     .range = at_least_0,
     .advice = "write one learning rate for all parameter groups"},
    {.path = "scheduler.params.warmup_max_lr",
     .kind = number,
     .range = at_least_0,
     .nullable = true,
     .advice = "write one learning rate for all parameter groups"},
    {.path = "scheduler.params.warmup_num_steps",
     .kind = integer,
     .range = at_least_1,
     .advice = "write a number of optimizer steps, or leave the key out for 1000"},
    {.path = "scheduler.params.warmup_type",
     .kind = choice,
     .choices = "log linear",
     .advice = "write \"log\" or \"linear\", or leave the key out for \"log\""},
    {.path = "scheduler.params.total_num_steps",
     .kind = integer,
     .range = at_least_1,
     .types = "WarmupDecayLR",
     .advice = "write the number of optimizer steps of the whole run"},
    {.path = "scheduler.params.last_batch_iteration",
     .kind = integer,
     .range = {.min = -1, .max = -1},
     .advice = "leave the key out: a schedule starts at the beginning"},

    {.path = "zero_optimization", .kind = section, .advice = "write an object such as {\"stage\": 2}"},
    {.path = "zero_optimization.stage",
     .kind = integer,
     .range = {.min = 0, .max = 3},
     .advice = "write 0, 1, 2 or 3"},
    {.path = "zero_optimization.reduce_bucket_size",
     .kind = integer,
     .range = at_least_1,
     .advice = "write a number of elements, or leave the key out for 5e8"},
    {.path = "zero_optimization.allgather_bucket_size",
     .kind = integer,
     .range = at_least_1,
     .advice = "write a number of elements, or leave the key out for 5e8"},
    {.path = "zero_optimization.overlap_comm", .kind = boolean, .nullable = true},
    {.path = "zero_optimization.contiguous_gradients",
     .kind = boolean,
     .usual = true,
     .reason = buckets_reason},
    {.path = "zero_optimization.reduce_scatter", .kind = boolean, .usual = true, .reason = buckets_reason},
    {.path = "zero_optimization.allgather_partitions",
     .kind = boolean,
     .usual = true,
     .reason = buckets_reason},
    {.path = "zero_optimization.round_robin_gradients",
     .kind = boolean,
     .usual = false,
     .reason = "every rank owns an equal slice of every bucket"},
    {.path = "zero_optimization.stage3_max_live_parameters",
     .alias = "max_live_parameters",
     .kind = integer,
     .range = at_least_0,
     .reason = stage3_reason,
     .advice = elements_1e9_advice},
    {.path = "zero_optimization.stage3_max_reuse_distance",
     .alias = "max_reuse_distance",
     .kind = integer,
     .range = at_least_0,
     .reason = stage3_reason,
     .advice = elements_1e9_advice},
    {.path = "zero_optimization.stage3_prefetch_bucket_size",
     .alias = "prefetch_bucket_size",
     .kind = integer,
     .range = at_least_0,
     .reason = stage3_reason,
     .advice = "write a number of elements, 0 to fetch nothing ahead, or leave the key out for 5e7"},
    {.path = "zero_optimization.stage3_param_persistence_threshold",
     .alias = "param_persistence_threshold",
     .kind = integer,
     .range = at_least_0,
     .reason = stage3_reason,
     .advice = "write a number of elements, or leave the key out for 1e5"},
    {.path = "zero_optimization.stage3_model_persistence_threshold",
     .alias = "model_persistence_threshold",
     .kind = integer,
     .range = at_least_0,
     .reason = stage3_reason,
     .advice = "write a number of elements, or leave the key out for no bound"},
    {.path = "zero_optimization.sub_group_size",
     .kind = integer,
     .range = at_least_0,
     .reason = "the optimizer goes from one small bucket to the next already",
     .advice = elements_1e9_advice},

    {.path = "fp16", .kind = section, .advice = "write an object such as {\"enabled\": false}"},
    {.path = "fp16.enabled", .kind = boolean, .only = false},
    {.path = "fp16.auto_cast", .kind = unread},
    {.path = "fp16.loss_scale", .kind = unread},
    {.path = "fp16.initial_scale_power", .kind = unread},
    {.path = "fp16.loss_scale_window", .kind = unread},
    {.path = "fp16.hysteresis", .kind = unread},
    {.path = "fp16.consecutive_hysteresis", .kind = unread},
    {.path = "fp16.min_loss_scale", .kind = unread},
    {.path = "fp16.fp16_master_weights_and_grads", .kind = unread},
    {.path = "fp16.fp16_opt_level", .kind = unread},
    {.path = "fp16.opt_level", .kind = unread},

    {.path = "bf16", .kind = section, .advice = "write an object such as {\"enabled\": false}"},
    {.path = "bf16.enabled", .kind = boolean, .only = false},
    {.path = "bf16.immediate_grad_update", .kind = unread},
    {.path = "bf16.check_grad_overflow", .kind = unread},
    {.path = "bf16.bf16_master_weights_and_grads", .kind = unread},
    {.path = "bf16.bf16_optimizer_states", .kind = unread},
};

struct Renamed {
  std::string_view path;
  std::string_view advice;
};

constexpr Renamed renamed[] = {
    {"bfloat16", "write bf16"},
    {"allgather_size", "write zero_optimization.allgather_bucket_size"},
    {"max_grad_norm", "write gradient_clipping"},
    {"optimizer.params.max_grad_norm", "write gradient_clipping at the top level"},
};

std::string_view section_of(std::string_view path) {
  const auto dot = path.rfind('.');
  return dot == std::string_view::npos ? std::string_view() : path.substr(0, dot);
}

}  // namespace

std::span<const KeyFact> offered_keys() {
  return offered;
}

const KeyFact* find_key(std::string_view path) {
  for (const KeyFact& fact : offered) {
    if (fact.path == path) return &fact;
    const bool aliased = !fact.alias.empty() && fact.alias == name_of(path);
    if (aliased && section_of(fact.path) == section_of(path)) return &fact;
  }
  return nullptr;
}

std::string_view renamed_key(std::string_view path) {
  for (const Renamed& row : renamed) {
    if (row.path == path) return row.advice;
  }
  return {};
}

bool is_not_offered(std::string_view path) {
  for (const KnownSection& section : deepspeed_only_keys()) {
    if (section.path == section_of(path) && has_word(section.keys, name_of(path))) return true;
  }
  return false;
}

std::vector<std::string_view> keys_of(std::string_view section) {
  std::vector<std::string_view> names;
  for (const KeyFact& fact : offered) {
    if (section_of(fact.path) != section) continue;
    names.push_back(name_of(fact.path));
    if (!fact.alias.empty()) names.push_back(fact.alias);
  }
  for (const KnownSection& known : deepspeed_only_keys()) {
    if (known.path == section)
      for_each_word(known.keys, [&](std::string_view name) { names.push_back(name); });
  }
  return names;
}

std::vector<std::string> paths_of(std::string_view name) {
  std::vector<std::string> paths;
  for (const KeyFact& fact : offered) {
    if (name_of(fact.path) == name) paths.emplace_back(fact.path);
    if (!name.empty() && fact.alias == name) paths.push_back(join_path(section_of(fact.path), name));
  }
  for (const KnownSection& known : deepspeed_only_keys()) {
    if (has_word(known.keys, name)) paths.push_back(join_path(known.path, name));
  }
  return paths;
}

std::string_view name_of(std::string_view path) {
  const auto dot = path.rfind('.');
  return dot == std::string_view::npos ? path : path.substr(dot + 1);
}

std::string join_path(std::string_view section, std::string_view name) {
  return section.empty() ? std::string(name) : std::string(section) + "." + std::string(name);
}

bool has_word(std::string_view list, std::string_view word) {
  bool found = false;
  for_each_word(list, [&](std::string_view candidate) { found = found || candidate == word; });
  return found;
}

}  // namespace zerorun
