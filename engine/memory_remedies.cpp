#include "engine/memory_remedies.h"

#include <initializer_list>
#include <variant>

#include "engine/setup.h"
#include "engine/state_placement.h"
#include "zero/stage.h"

namespace zerorun {
namespace {

struct Choice {
  bool applies;
  MemoryRemedy remedy;
};

}  // namespace

RemediesByUse remedies_of(const Config& config, int data_ranks, bool on_gpu) {
  using enum MemoryRemedy;
  const StagePolicy policy = policy_of(config);
  const PrecisionConfig& precision = config.precision;
  const bool divides = data_ranks > 1;
  const bool states_in_files = optimizer_offload(config.zero) == OffloadDevice::nvme;
  const bool states_on_host = optimizer_offload(config.zero) == OffloadDevice::cpu;
  const bool values_in_files = parameter_offload(config.zero) == OffloadDevice::nvme;
  const bool is_fp32 = precision.training == Dtype::fp32;
  const bool is_bf16 = precision.training == Dtype::bf16;
  const bool in_8_bits = precision.moments_in_8_bits;
  const bool wide_moments = is_bf16 && !in_8_bits && precision.moments == Dtype::fp32 && config.optimizer &&
                            (std::holds_alternative<AdamConfig>(*config.optimizer) ||
                             std::holds_alternative<LionConfig>(*config.optimizer));
  const bool wide_sums = is_bf16 && precision.accumulation == Dtype::fp32;
  const bool by_window = policy_of(config.zero.stage).reduce_every_backward && !policy.reduce_every_backward;
  // Has no effect at stage 0, and is refused with states in 8 bits.
  const bool to_files = !policy.replicate_update && !states_in_files && !in_8_bits;
  // On a GPU the host has the values in files only if it updates them.
  const bool values_to_files = !values_in_files && (!on_gpu || states_on_host || states_in_files);
  const RecomputeConfig& recomputes = config.recompute;
  const bool recomputes_nothing = recomputes.every == 0 && recomputes.patterns.empty() &&
                                  !recomputes.budget && config.pipeline.recomputed_group == 0;

  RemediesByUse remedies{};
  const auto set = [&](MemoryUse use, std::initializer_list<Choice> choices) {
    auto& best = remedies[static_cast<size_t>(use)];
    size_t count = 0;
    for (const Choice& choice : choices)
      if (choice.applies && count < best.size()) best[count++] = choice.remedy;
  };
  const std::initializer_list<Choice> of_states = {{policy.replicate_update && divides, stage_1},
                                                   {on_gpu && to_files && !states_on_host, states_to_cpu},
                                                   {to_files, states_to_files},
                                                   {wide_moments, bf16_states},
                                                   {true, more_hosts},
                                                   {true, more_memory}};
  set(MemoryUse::parameters, {{!policy.partition_parameters && divides, stage_3},
                              {values_to_files, parameters_to_files},
                              {is_fp32, bf16},
                              {divides, tensor_parallel},
                              {true, more_hosts}});
  set(MemoryUse::gradients, {{by_window, reduce_each_micro_batch},
                             {!policy.reduce_every_backward && !by_window && divides, stage_2},
                             {wide_sums, accumulate_in_bf16},
                             {is_fp32, bf16},
                             {divides, tensor_parallel},
                             {true, more_hosts}});
  set(MemoryUse::master, of_states);
  set(MemoryUse::moments, of_states);
  set(MemoryUse::buckets, {{divides, smaller_reduce_buckets},
                           {states_in_files, smaller_sub_groups},
                           {true, fewer_ranks},
                           {true, more_memory}});
  set(MemoryUse::buffers,
      {{!policy.partition_parameters && divides, stage_3}, {is_fp32, bf16}, {true, more_memory}});
  set(MemoryUse::gathered, {{config.zero.max_live_parameters > 0, fewer_live},
                            {config.zero.prefetch_bucket_size > 0, less_prefetch},
                            {config.zero.param_persistence_threshold > 0, less_persistent}});
  set(MemoryUse::on_host, {{to_files, states_to_files}, {true, fewer_ranks}, {true, more_hosts}});
  set(MemoryUse::messages,
      {{true, smaller_reduce_buckets}, {true, smaller_gather_buckets}, {true, more_memory}});
  set(MemoryUse::checkpoint, {{true, save_less_often}, {to_files, states_to_files}, {true, more_memory}});
  set(MemoryUse::other, {{config.batch.micro_batch_size_per_gpu > 1, smaller_micro_batch},
                         {recomputes_nothing, recompute},
                         {is_fp32, bf16},
                         {divides, tensor_parallel},
                         {true, more_memory}});
  return remedies;
}

}  // namespace zerorun
