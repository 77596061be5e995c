#include "config/deepspeed_keys.h"

namespace zerorun {
namespace {

constexpr KnownSection sections[] = {
    {"",
     "managed_gradient_accumulation amp torch_autocast communication_data_type "
     "seq_parallel_communication_data_type gradient_allreduce_op sparse_gradients disable_allgather "
     "fp32_allreduce data_types zero_force_ds_cpu_optimizer aio activation_checkpointing "
     "memory_breakdown dump_state log_level timers tensorboard csv_monitor wandb comet "
     "flops_profiler comms_logger checkpoint datastates_ckpt nebula dataloader_drop_last "
     "vocabulary_size graph_harvesting use_data_before_expert_parallelism seed data_efficiency "
     "curriculum_learning progressive_layer_drop eigenvalue quantize_training compression_training "
     "weight_quantization sparse_attention pipeline hybrid_engine tensor_parallel expert_parallel "
     "sequence_parallel_size compile elasticity autotuning data_parallel_size"},
    {"optimizer", "legacy_fusion"},
    {"optimizer.params",
     "fp32_optimizer_states muon_lr adam_lr ns_method max_coeff min_coeff eps_inside_sqrt "
     "freeze_step cuda_aware comm_backend_name coeff_beta factor_max factor_min factor_threshold "
     "var_freeze_step var_update_scaler local_step_scaler local_step_clipper"},
    {"scheduler.params",
     "warmup_min_ratio cos_min_ratio lr_range_test_min_lr lr_range_test_step_size "
     "lr_range_test_step_rate lr_range_test_staircase cycle_min_lr cycle_max_lr decay_lr_rate "
     "cycle_first_step_size cycle_second_step_size cycle_first_stair_count cycle_second_stair_count "
     "decay_step_size cycle_momentum cycle_min_mom cycle_max_mom decay_mom_rate"},
    {"amp", "enabled opt_level"},
    {"torch_autocast", "enabled dtype lower_precision_safe_modules"},
    {"data_types", "grad_accum_dtype param_dtype buffer_dtype"},
    {"zero_optimization",
     "use_multi_rank_bucket_allreduce load_from_fp32_weights elastic_checkpoint "
     "gather_16bit_weights_on_model_save module_granularity_threshold "
     "use_all_reduce_for_fetch_params allgather_sequential "
     "ignore_unused_parameters legacy_stage1 zero_hpz_partition_size zero_quantized_weights "
     "zero_quantized_nontrainable_weights zero_quantized_gradients zeropp_loco_param mics_shard_size "
     "mics_hierarchical_params_gather memory_efficient_linear pipeline_loading_checkpoint "
     "override_module_apply log_trace_cache_warnings enable_sanity_checks "
     "save_muon_momentum_buffer_in_memory stage3_gather_16bit_weights_on_model_save "
     "stage3_module_granularity_threshold stage3_use_all_reduce_for_fetch_params "
     "stage3_allgather_sequential stage3_gather_fp16_weights_on_model_save cpu_offload "
     "cpu_offload_param cpu_offload_params cpu_offload_use_pin_memory offload_param "
     "offload_optimizer leaf_module zenflow compute_grad_norm"},
    {"zero_optimization.offload_param", "device nvme_path buffer_count buffer_size max_in_cpu pin_memory"},
    {"zero_optimization.offload_optimizer",
     "device nvme_path buffer_count pin_memory pipeline_read pipeline_write fast_init ratio "
     "super_offload cpuadam_cores_perc"},
    {"zero_optimization.leaf_module", "classes names name_suffixes"},
    {"zero_optimization.zenflow",
     "topk_ratio select_strategy select_interval update_interval overlap_step offload auto_ratio "
     "full_warm_up_rounds pt_reserved_cores_perc steps_per_epoch"},
    {"aio", "block_size queue_depth intra_op_parallelism single_submit overlap_events use_gds thread_count"},
    {"activation_checkpointing",
     "partition_activations number_checkpoints contiguous_memory_optimization "
     "synchronize_checkpoint_boundary profile cpu_checkpointing"},
    {"timers", "throughput"},
    {"timers.throughput", "enabled synchronized"},
    {"tensorboard", "enabled output_path job_name"},
    {"csv_monitor", "enabled output_path job_name"},
    {"wandb", "enabled group team project"},
    {"comet",
     "enabled samples_log_interval project workspace api_key experiment_name experiment_key online "
     "mode"},
    {"flops_profiler",
     "enabled recompute_fwd_factor profile_step module_depth top_modules detailed output_file"},
    {"comms_logger", "enabled verbose prof_all debug prof_ops"},
    {"checkpoint",
     "tag_validation load_universal use_node_local_storage parallel_write checkpoint_serialization "
     "writer"},
    {"checkpoint.parallel_write", "pipeline_stage"},
    {"checkpoint.writer",
     "type decoupled io_buffer_size io_buffer_double show_statistics data_parallel io_multiplier"},
    {"nebula",
     "enabled enable_nebula_load nebula_load_path persistent_storage_path persistent_time_interval "
     "num_of_version_in_retention"},
    {"data_efficiency", "enabled seed data_sampling data_routing"},
    {"data_efficiency.data_sampling",
     "enabled num_epochs num_workers pin_memory curriculum_learning dynamic_batching"},
    {"data_efficiency.data_sampling.curriculum_learning", "enabled data_cluster_path curriculum_metrics"},
    {"data_efficiency.data_sampling.curriculum_learning.curriculum_metrics.*",
     "index_to_sample_path index_to_metric_path difficulty_type clustering_type min_difficulty "
     "max_difficulty schedule_type schedule_config"},
    {"data_efficiency.data_sampling.dynamic_batching",
     "enabled metrics_path lr_scaling_method min_batch_size max_batch_size sequence_picking_order "
     "max_tokens verbose"},
    {"data_efficiency.data_routing", "enabled random_ltd"},
    {"curriculum_learning",
     "enabled curriculum_type min_difficulty max_difficulty schedule_type schedule_config"},
    {"progressive_layer_drop", "enabled theta gamma"},
    {"eigenvalue", "enabled verbose max_iter tol stability gas_boundary_resolution layer_name layer_num"},
    {"sparse_attention",
     "mode block different_layout_per_head num_local_blocks num_global_blocks attention "
     "horizontal_global_attention num_different_global_patterns num_random_blocks "
     "local_window_blocks global_block_indices global_block_end_indices num_sliding_window_blocks"},
    {"pipeline",
     "stages partition seed_layers activation_checkpoint_interval pipe_partitioned grad_partitioned"},
    {"hybrid_engine",
     "enabled max_out_tokens inference_tp_size release_inference_cache pin_parameters "
     "tp_gather_partition_size enable_cuda_graph"},
    {"tensor_parallel",
     "autotp_size dtype tp_overlap_comm tensor_parallel tp injection_policy_tuple partition_config "
     "preset_model keep_module_on_host replace_with_kernel_inject kernel_inject"},
    {"compile",
     "deepcompile free_activation free_activation_threshold offload_activation "
     "offload_activation_pin_memory offload_opt_states double_buffer symmetric_memory debug_log "
     "offload_parameters sync_before_reduce sync_after_reduce sync_before_allgather "
     "sync_after_allgather keep_int_input_tensors keep_all_input_tensors passes"},
    {"elasticity",
     "enabled max_train_batch_size micro_batch_sizes min_gpus max_gpus num_gpus_per_node "
     "model_parallel_size min_time prefer_larger_batch ignore_non_elastic_batch_info version"},
    {"autotuning",
     "enabled fast results_dir exps_dir overwrite start_profile_step end_profile_step metric_path "
     "tuner_type tuner_early_stopping tuner_num_trials arg_mappings max_train_batch_size "
     "min_train_batch_size max_train_micro_batch_size_per_gpu min_train_micro_batch_size_per_gpu "
     "num_tuning_micro_batch_sizes mp_size metric model_info_path model_info"},
};

}  // namespace

std::span<const KnownSection> deepspeed_only_keys() {
  return sections;
}

}  // namespace zerorun
