#include "engine/memory_remedies.h"

#include <initializer_list>

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
  const bool wide_moments = precision.training == Dtype::bf16 && precision.moments == Dtype::fp32;
  const bool wide_sums = !is_fp32 && precision.accumulation == Dtype::fp32;
  const bool by_window = config.pipeline.reduces_by_window;

  RemediesByUse remedies{};
  const auto set = [&](MemoryUse use, std::initializer_list<Choice> choices) {
    auto& best = remedies[static_cast<size_t>(use)];
    size_t count = 0;
    for (const Choice& choice : choices)
      if (choice.applies && count < best.size()) best[count++] = choice.remedy;
  };
  const std::initializer_list<Choice> of_states = {
      {policy.replicate_update && divides, stage_1},
      {on_gpu && !states_on_host && !states_in_files, states_to_cpu},
      {!states_in_files, states_to_files},
      {wide_moments, bf16_states},
      {true, more_hosts},
      {true, more_memory}};
  set(MemoryUse::parameters, {{!policy.partition_parameters && divides, stage_3},
                              {!values_in_files, parameters_to_files},
                              {is_fp32, bf16},
                              {true, tensor_parallel},
                              {true, more_hosts}});
  set(MemoryUse::gradients, {{by_window, reduce_each_micro_batch},
                             {!policy.reduce_every_backward && !by_window && divides, stage_2},
                             {wide_sums, accumulate_in_bf16},
                             {is_fp32, bf16},
                             {true, tensor_parallel},
                             {true, more_hosts}});
  set(MemoryUse::master, of_states);
  set(MemoryUse::moments, of_states);
  set(MemoryUse::buckets, {{divides, smaller_reduce_buckets},
                           {states_in_files || values_in_files, fewer_buffers},
                           {states_in_files, smaller_sub_groups},
                           {true, fewer_ranks},
                           {true, more_memory}});
  set(MemoryUse::buffers,
      {{!policy.partition_parameters && divides, stage_3}, {is_fp32, bf16}, {true, more_memory}});
  set(MemoryUse::gathered, {{true, fewer_live}, {true, less_prefetch}, {true, less_persistent}});
  set(MemoryUse::on_host, {{!states_in_files, states_to_files}, {true, fewer_ranks}, {true, more_hosts}});
  set(MemoryUse::messages,
      {{true, smaller_reduce_buckets}, {true, smaller_gather_buckets}, {true, more_memory}});
  set(MemoryUse::checkpoint,
      {{true, save_less_often}, {!states_in_files, states_to_files}, {true, more_memory}});
  set(MemoryUse::other, {{config.batch.micro_batch_size_per_gpu > 1, smaller_micro_batch},
                         {config.recompute.every == 0, recompute},
                         {is_fp32, bf16},
                         {true, tensor_parallel},
                         {true, more_memory}});
  return remedies;
}

}  // namespace zerorun
