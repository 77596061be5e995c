// Keys of DeepSpeed features that choose training data or change the computation: curricula, quantization,
// pruning, sparse attention.
#include "config/keys/tables.h"

namespace zerorun::config::keys {

static constexpr KeyFact data_rows[] = {
    feature("data_efficiency", "data sampling and data routing")
        .not_supported("the program selects its training data itself"),
    enabled,
    integer(".seed", "1234", "random seed of the samplers"),
    feature("data_efficiency.data_sampling", "how samples are drawn"),
    enabled,
    integer(".num_epochs", "1000", "number of epochs"),
    integer(".num_workers", "0", "number of loader processes"),
    boolean(".pin_memory", "false", "load samples into page-locked memory"),
    feature("data_efficiency.data_sampling.curriculum_learning",
            "curriculum learning: easy samples come first"),
    enabled.refused(),
    text(".data_cluster_path", "", "folder with the clustered samples").or_null(),
    section("data_efficiency.data_sampling.curriculum_learning.curriculum_metrics",
            "difficulty metrics; the keys are the names of the metrics")
        .or_null(),
    section("data_efficiency.data_sampling.curriculum_learning.curriculum_metrics.*", "one metric"),
    anything(".index_to_sample_path", "file that lists the samples of each index"),
    anything(".index_to_metric_path", "file that lists the metric value of each index"),
    anything(".difficulty_type", "type of difficulty"),
    anything(".clustering_type", "how samples are clustered"),
    anything(".min_difficulty", "difficulty at the start"),
    anything(".max_difficulty", "difficulty at the end"),
    anything(".schedule_type", "how the difficulty increases"),
    anything(".schedule_config", "parameters of the schedule"),
    feature("data_efficiency.data_sampling.dynamic_batching",
            "batches whose size depends on sequence lengths"),
    enabled.refused(),
    text(".metrics_path", "", "folder with the sequence lengths").or_null(),
    text(".lr_scaling_method", "\"linear\"", "how the learning rate is scaled with the batch size"),
    integer(".min_batch_size", "1", "minimum batch size"),
    integer(".max_batch_size", "", "maximum batch size").or_null(),
    text(".sequence_picking_order", "\"dataloader\"", "order in which sequences are picked"),
    integer(".max_tokens", "", "maximum number of tokens per batch").or_null(),
    boolean(".verbose", "false", "print the batches"),
    feature("data_efficiency.data_routing", "which tokens pass through which layers"),
    enabled,
    object(".random_ltd", "random layerwise token dropping (random-LTD)").switched_by("enabled").refused(),
    feature("curriculum_learning", "curriculum learning in the form of old DeepSpeed versions")
        .not_supported("the program selects its training data itself")
        .removed_from_deepspeed(),
    enabled.refused(),
    text(".curriculum_type", "", "difficulty metric"),
    integer(".min_difficulty", "", "difficulty at the start"),
    integer(".max_difficulty", "", "difficulty at the end"),
    text(".schedule_type", "", "how the difficulty increases"),
    object(".schedule_config", "parameters of the schedule"),
    feature("progressive_layer_drop", "skip layers during training")
        .not_supported("the model decides which layers it runs")
        .removed_from_deepspeed(),
    enabled.refused(),
    number(".theta", "1.0", "fraction of layers that are kept at the end"),
    number(".gamma", "0.001", "how fast this fraction is reached"),
    feature("eigenvalue", "eigenvalues of the Hessian of the loss, used by quantize_training")
        .not_supported("ZeroRun does not quantize during training")
        .removed_from_deepspeed(),
    enabled,
    boolean(".verbose", "false", "print the eigenvalues"),
    integer(".max_iter", "100", "maximum number of iterations"),
    number(".tol", "0.01", "tolerance at which the iteration stops"),
    number(".stability", "1e-06", "added to the denominator"),
    integer(".gas_boundary_resolution", "1",
            "number of gradient accumulation boundaries between two computations"),
    text(".layer_name", "\"bert.encoder.layer\"", "path of the layers in the model"),
    integer(".layer_num", "0", "number of layers"),
    object("quantize_training", "quantization during training, in the form of old DeepSpeed versions")
        .or_null()
        .switched_by("enabled")
        .refused("ZeroRun does not quantize during training")
        .removed_from_deepspeed(),
    object("compression_training", "quantization and pruning during training")
        .switched_by("enabled")
        .refused("ZeroRun does not quantize or prune during training")
        .removed_from_deepspeed(),
    object("weight_quantization", "quantized weights for inference")
        .or_null()
        .refused("ZeroRun does not quantize weights"),
    section("sparse_attention", "attention to a subset of the tokens")
        .refused("the model computes its own attention")
        .removed_from_deepspeed(),
    text(".mode", "\"fixed\"", "sparsity pattern of the attention"),
    integer(".block", "16", "number of tokens per block"),
    boolean(".different_layout_per_head", "false", "use a separate pattern for each head"),
    integer(".num_local_blocks", "4", "number of blocks in a local window"),
    integer(".num_global_blocks", "1", "number of blocks that all tokens attend to"),
    text(".attention", "\"bidirectional\"", "bidirectional or unidirectional"),
    boolean(".horizontal_global_attention", "false", "let global blocks attend to all blocks"),
    integer(".num_different_global_patterns", "1", "number of patterns of global blocks"),
    integer(".num_random_blocks", "0", "number of random blocks"),
    integers(".local_window_blocks", "[4]", "number of blocks in each local window"),
    integers(".global_block_indices", "[0]", "indices of the global blocks"),
    integers(".global_block_end_indices", "", "end indices of the ranges of global blocks").or_null(),
    integer(".num_sliding_window_blocks", "3", "number of blocks in the sliding window"),
};

const std::span<const KeyFact> data = data_rows;

}  // namespace zerorun::config::keys
