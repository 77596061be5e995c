// Keys with which DeepSpeed chooses training data and alters the computation: curricula, quantization,
// pruning, sparse attention.
#include "config/keys/tables.h"

namespace zerorun {
namespace {

using namespace keys;

constexpr KeyFact rows[] = {
    section("data_efficiency", "choice and routing of data")
        .switched_by("enabled")
        .not_offered("the program chooses its data itself"),
    boolean("data_efficiency.enabled", "false", "use it").not_offered("the program chooses its data itself"),
    integer("data_efficiency.seed", "1234", "seed of the samplers")
        .not_offered("the program chooses its data itself"),
    section("data_efficiency.data_sampling", "which samples are drawn")
        .switched_by("enabled")
        .not_offered("the program chooses its data itself"),
    boolean("data_efficiency.data_sampling.enabled", "false", "use it")
        .not_offered("the program chooses its data itself"),
    integer("data_efficiency.data_sampling.num_epochs", "1000", "rounds through the data")
        .not_offered("the program chooses its data itself"),
    integer("data_efficiency.data_sampling.num_workers", "0", "processes that load")
        .not_offered("the program chooses its data itself"),
    boolean("data_efficiency.data_sampling.pin_memory", "false", "keep samples page-locked")
        .not_offered("the program chooses its data itself"),
    section("data_efficiency.data_sampling.curriculum_learning", "easy samples first")
        .switched_by("enabled")
        .not_offered("the program chooses its data itself"),
    boolean("data_efficiency.data_sampling.curriculum_learning.enabled", "false", "use it")
        .refused("the program chooses its data itself"),
    text("data_efficiency.data_sampling.curriculum_learning.data_cluster_path", "",
         "folder of the groups of samples")
        .or_null()
        .not_offered("the program chooses its data itself"),
    section("data_efficiency.data_sampling.curriculum_learning.curriculum_metrics",
            "what makes a sample easy; the keys are names of metrics")
        .or_null()
        .not_offered("the program chooses its data itself"),
    section("data_efficiency.data_sampling.curriculum_learning.curriculum_metrics.*", "one metric")
        .not_offered("the program chooses its data itself"),
    anything("data_efficiency.data_sampling.curriculum_learning.curriculum_metrics.*.index_to_sample_path",
             "file of the samples by value")
        .not_offered("the program chooses its data itself"),
    anything("data_efficiency.data_sampling.curriculum_learning.curriculum_metrics.*.index_to_metric_path",
             "file of the values by sample")
        .not_offered("the program chooses its data itself"),
    anything("data_efficiency.data_sampling.curriculum_learning.curriculum_metrics.*.difficulty_type",
             "what difficulty means")
        .not_offered("the program chooses its data itself"),
    anything("data_efficiency.data_sampling.curriculum_learning.curriculum_metrics.*.clustering_type",
             "how samples are grouped")
        .not_offered("the program chooses its data itself"),
    anything("data_efficiency.data_sampling.curriculum_learning.curriculum_metrics.*.min_difficulty",
             "difficulty at the start")
        .not_offered("the program chooses its data itself"),
    anything("data_efficiency.data_sampling.curriculum_learning.curriculum_metrics.*.max_difficulty",
             "difficulty at the end")
        .not_offered("the program chooses its data itself"),
    anything("data_efficiency.data_sampling.curriculum_learning.curriculum_metrics.*.schedule_type",
             "how difficulty grows")
        .not_offered("the program chooses its data itself"),
    anything("data_efficiency.data_sampling.curriculum_learning.curriculum_metrics.*.schedule_config",
             "parameters of that")
        .not_offered("the program chooses its data itself"),
    section("data_efficiency.data_sampling.dynamic_batching", "batches by tokens")
        .switched_by("enabled")
        .not_offered("the program chooses its data itself"),
    boolean("data_efficiency.data_sampling.dynamic_batching.enabled", "false", "use it")
        .refused("the program chooses its data itself"),
    text("data_efficiency.data_sampling.dynamic_batching.metrics_path", "", "folder of the lengths")
        .or_null()
        .not_offered("the program chooses its data itself"),
    text("data_efficiency.data_sampling.dynamic_batching.lr_scaling_method", "\"linear\"",
         "how the learning rate follows")
        .not_offered("the program chooses its data itself"),
    integer("data_efficiency.data_sampling.dynamic_batching.min_batch_size", "1", "smallest batch")
        .not_offered("the program chooses its data itself"),
    integer("data_efficiency.data_sampling.dynamic_batching.max_batch_size", "", "largest batch")
        .or_null()
        .not_offered("the program chooses its data itself"),
    text("data_efficiency.data_sampling.dynamic_batching.sequence_picking_order", "\"dataloader\"",
         "order of the samples")
        .not_offered("the program chooses its data itself"),
    integer("data_efficiency.data_sampling.dynamic_batching.max_tokens", "", "tokens of a batch")
        .or_null()
        .not_offered("the program chooses its data itself"),
    boolean("data_efficiency.data_sampling.dynamic_batching.verbose", "false", "print batches")
        .not_offered("the program chooses its data itself"),
    section("data_efficiency.data_routing", "which tokens go through which layers")
        .switched_by("enabled")
        .not_offered("the program chooses its data itself"),
    boolean("data_efficiency.data_routing.enabled", "false", "use it")
        .not_offered("the program chooses its data itself"),
    object("data_efficiency.data_routing.random_ltd", "tokens that are dropped at random, layer by layer")
        .switched_by("enabled")
        .refused("the program chooses its data itself"),
    section("curriculum_learning", "easy samples first, in the form of old versions")
        .switched_by("enabled")
        .not_offered("the program chooses its data itself"),
    boolean("curriculum_learning.enabled", "false", "use it").refused("the program chooses its data itself"),
    text("curriculum_learning.curriculum_type", "", "what makes a sample easy")
        .not_offered("the program chooses its data itself"),
    integer("curriculum_learning.min_difficulty", "", "difficulty at the start")
        .not_offered("the program chooses its data itself"),
    integer("curriculum_learning.max_difficulty", "", "difficulty at the end")
        .not_offered("the program chooses its data itself"),
    text("curriculum_learning.schedule_type", "", "how difficulty grows")
        .not_offered("the program chooses its data itself"),
    object("curriculum_learning.schedule_config", "parameters of that")
        .not_offered("the program chooses its data itself"),
    section("progressive_layer_drop", "leave layers out while training")
        .switched_by("enabled")
        .not_offered("the model decides which layers it runs"),
    boolean("progressive_layer_drop.enabled", "false", "use it")
        .refused("the model decides which layers it runs"),
    number("progressive_layer_drop.theta", "1.0", "share of layers kept at the end")
        .not_offered("the model decides which layers it runs"),
    number("progressive_layer_drop.gamma", "0.001", "how fast that is reached")
        .not_offered("the model decides which layers it runs"),
    section("eigenvalue", "curvature of the loss, for quantize_training")
        .switched_by("enabled")
        .not_offered("there is no quantization while training"),
    boolean("eigenvalue.enabled", "false", "use it").not_offered("there is no quantization while training"),
    boolean("eigenvalue.verbose", "false", "print it").not_offered("there is no quantization while training"),
    integer("eigenvalue.max_iter", "100", "iterations at most")
        .not_offered("there is no quantization while training"),
    number("eigenvalue.tol", "0.01", "when to stop").not_offered("there is no quantization while training"),
    number("eigenvalue.stability", "1e-06", "added to the denominator")
        .not_offered("there is no quantization while training"),
    integer("eigenvalue.gas_boundary_resolution", "1", "boundaries from one computation to the next")
        .not_offered("there is no quantization while training"),
    text("eigenvalue.layer_name", "\"bert.encoder.layer\"", "where the layers are in the model")
        .not_offered("there is no quantization while training"),
    integer("eigenvalue.layer_num", "0", "number of layers")
        .not_offered("there is no quantization while training"),
    object("quantize_training", "quantization while training, in the form of old versions")
        .or_null()
        .switched_by("enabled")
        .refused("there is no quantization while training"),
    object("compression_training", "quantization and pruning while training")
        .switched_by("enabled")
        .refused("there is no quantization or pruning while training"),
    object("weight_quantization", "quantized weights for inference")
        .or_null()
        .refused("weights stay as they are"),
    section("sparse_attention", "attention among some of the tokens; DeepSpeed has removed it")
        .refused("the model computes its own attention"),
    text("sparse_attention.mode", "\"fixed\"", "which tokens attend to which")
        .not_offered("the model computes its own attention"),
    integer("sparse_attention.block", "16", "tokens of a block")
        .not_offered("the model computes its own attention"),
    boolean("sparse_attention.different_layout_per_head", "false", "a pattern of its own for each head")
        .not_offered("the model computes its own attention"),
    integer("sparse_attention.num_local_blocks", "4", "blocks of a local window")
        .not_offered("the model computes its own attention"),
    integer("sparse_attention.num_global_blocks", "1", "blocks that all attend to")
        .not_offered("the model computes its own attention"),
    text("sparse_attention.attention", "\"bidirectional\"", "both ways, or backward only")
        .not_offered("the model computes its own attention"),
    boolean("sparse_attention.horizontal_global_attention", "false", "global blocks attend to all")
        .not_offered("the model computes its own attention"),
    integer("sparse_attention.num_different_global_patterns", "1", "patterns of global blocks")
        .not_offered("the model computes its own attention"),
    integer("sparse_attention.num_random_blocks", "0", "blocks chosen at random")
        .not_offered("the model computes its own attention"),
    integers("sparse_attention.local_window_blocks", "[4]", "blocks of each local window")
        .not_offered("the model computes its own attention"),
    integers("sparse_attention.global_block_indices", "[0]", "which blocks are global")
        .not_offered("the model computes its own attention"),
    integers("sparse_attention.global_block_end_indices", "", "where ranges of global blocks end")
        .or_null()
        .not_offered("the model computes its own attention"),
    integer("sparse_attention.num_sliding_window_blocks", "3", "blocks of a sliding window")
        .not_offered("the model computes its own attention"),
};

}  // namespace

std::span<const KeyFact> data_keys() {
  return rows;
}

}  // namespace zerorun
