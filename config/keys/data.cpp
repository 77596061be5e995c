// Keys of DeepSpeed features that choose training data or change the computation: curricula, quantization,
// pruning, sparse attention.
#include "config/keys/tables.h"

namespace zerorun::keys {

static constexpr KeyFact rows[] = {
    feature("data_efficiency", "choice and routing of data")
        .not_offered("the program chooses its data itself"),
    boolean(".enabled", "false", "use it"),
    integer(".seed", "1234", "seed of the samplers"),
    feature("data_efficiency.data_sampling", "which samples are drawn"),
    boolean(".enabled", "false", "use it"),
    integer(".num_epochs", "1000", "rounds through the data"),
    integer(".num_workers", "0", "processes that load"),
    boolean(".pin_memory", "false", "keep samples page-locked"),
    feature("data_efficiency.data_sampling.curriculum_learning", "easy samples first"),
    boolean(".enabled", "false", "use it").refused(),
    text(".data_cluster_path", "", "folder of the groups of samples").or_null(),
    section("data_efficiency.data_sampling.curriculum_learning.curriculum_metrics",
            "what makes a sample easy; the keys are names of metrics")
        .or_null(),
    section("data_efficiency.data_sampling.curriculum_learning.curriculum_metrics.*", "one metric"),
    anything(".index_to_sample_path", "file of the samples by value"),
    anything(".index_to_metric_path", "file of the values by sample"),
    anything(".difficulty_type", "what difficulty means"),
    anything(".clustering_type", "how samples are grouped"),
    anything(".min_difficulty", "difficulty at the start"),
    anything(".max_difficulty", "difficulty at the end"),
    anything(".schedule_type", "how difficulty grows"),
    anything(".schedule_config", "parameters of that"),
    feature("data_efficiency.data_sampling.dynamic_batching", "batches by tokens"),
    boolean(".enabled", "false", "use it").refused(),
    text(".metrics_path", "", "folder of the lengths").or_null(),
    text(".lr_scaling_method", "\"linear\"", "how the learning rate follows"),
    integer(".min_batch_size", "1", "smallest batch"),
    integer(".max_batch_size", "", "largest batch").or_null(),
    text(".sequence_picking_order", "\"dataloader\"", "order of the samples"),
    integer(".max_tokens", "", "tokens of a batch").or_null(),
    boolean(".verbose", "false", "print batches"),
    feature("data_efficiency.data_routing", "which tokens go through which layers"),
    boolean(".enabled", "false", "use it"),
    object(".random_ltd", "tokens that are dropped at random, layer by layer")
        .switched_by("enabled")
        .refused(),
    feature("curriculum_learning", "easy samples first, in the form of old versions")
        .not_offered("the program chooses its data itself"),
    boolean(".enabled", "false", "use it").refused(),
    text(".curriculum_type", "", "what makes a sample easy"),
    integer(".min_difficulty", "", "difficulty at the start"),
    integer(".max_difficulty", "", "difficulty at the end"),
    text(".schedule_type", "", "how difficulty grows"),
    object(".schedule_config", "parameters of that"),
    feature("progressive_layer_drop", "leave layers out while training")
        .not_offered("the model decides which layers it runs"),
    boolean(".enabled", "false", "use it").refused(),
    number(".theta", "1.0", "share of layers kept at the end"),
    number(".gamma", "0.001", "how fast that is reached"),
    feature("eigenvalue", "curvature of the loss, for quantize_training")
        .not_offered("there is no quantization while training (removed from DeepSpeed after 0.19.6)"),
    boolean(".enabled", "false", "use it"),
    boolean(".verbose", "false", "print it"),
    integer(".max_iter", "100", "iterations at most"),
    number(".tol", "0.01", "when to stop"),
    number(".stability", "1e-06", "added to the denominator"),
    integer(".gas_boundary_resolution", "1", "boundaries from one computation to the next"),
    text(".layer_name", "\"bert.encoder.layer\"", "where the layers are in the model"),
    integer(".layer_num", "0", "number of layers"),
    object("quantize_training", "quantization while training, in the form of old versions")
        .or_null()
        .switched_by("enabled")
        .refused("there is no quantization while training (removed from DeepSpeed after 0.19.6)"),
    object("compression_training", "quantization and pruning while training")
        .switched_by("enabled")
        .refused("there is no quantization or pruning while training (removed from DeepSpeed after 0.19.6)"),
    object("weight_quantization", "quantized weights for inference")
        .or_null()
        .refused("weights stay as they are"),
    section("sparse_attention", "attention among some of the tokens; DeepSpeed has removed it")
        .refused("the model computes its own attention"),
    text(".mode", "\"fixed\"", "which tokens attend to which"),
    integer(".block", "16", "tokens of a block"),
    boolean(".different_layout_per_head", "false", "a pattern of its own for each head"),
    integer(".num_local_blocks", "4", "blocks of a local window"),
    integer(".num_global_blocks", "1", "blocks that all attend to"),
    text(".attention", "\"bidirectional\"", "both ways, or backward only"),
    boolean(".horizontal_global_attention", "false", "global blocks attend to all"),
    integer(".num_different_global_patterns", "1", "patterns of global blocks"),
    integer(".num_random_blocks", "0", "blocks chosen at random"),
    integers(".local_window_blocks", "[4]", "blocks of each local window"),
    integers(".global_block_indices", "[0]", "which blocks are global"),
    integers(".global_block_end_indices", "", "where ranges of global blocks end").or_null(),
    integer(".num_sliding_window_blocks", "3", "blocks of a sliding window"),
};

const std::span<const KeyFact> data = rows;

}  // namespace zerorun::keys
