// Keys of DeepSpeed features that choose training data or change the computation: curricula, quantization,
// pruning, sparse attention.
#include "config/keys/tables.h"

namespace zerorun::config::keys {

static constexpr KeyFact data_rows[] = {
    object("data_efficiency", "data sampling and data routing; inside it only the switches are read")
        .switched_by("enabled")
        .not_supported("the program selects its training data itself")
        .refused_parts_are(
            "data_sampling.curriculum_learning data_sampling.dynamic_batching data_routing.random_ltd"),
    object("curriculum_learning", "curriculum learning in the form of old DeepSpeed versions")
        .switched_by("enabled")
        .refused("the program selects its training data itself")
        .removed_from_deepspeed(),
    object("progressive_layer_drop", "skip layers during training")
        .switched_by("enabled")
        .refused("the model decides which layers it runs")
        .removed_from_deepspeed(),
    object("eigenvalue", "eigenvalues of the Hessian of the loss, used by quantize_training")
        .switched_by("enabled")
        .not_supported("ZeroRun does not quantize during training")
        .removed_from_deepspeed(),
    object("quantize_training", "quantization during training, in the form of old DeepSpeed versions")
        .or_null()
        .switched_by("enabled")
        .at_any_depth()
        .refused("ZeroRun does not quantize during training")
        .removed_from_deepspeed(),
    object("compression_training", "quantization and pruning during training")
        .switched_by("enabled")
        .at_any_depth()
        .refused("ZeroRun does not quantize or prune during training")
        .removed_from_deepspeed(),
    object("weight_quantization", "quantized weights for inference")
        .or_null()
        .refused("ZeroRun does not quantize weights"),
    object("sparse_attention", "attention to a subset of the tokens")
        .used_if_present()
        .refused("the model computes its own attention")
        .removed_from_deepspeed(),
};

const std::span<const KeyFact> data = data_rows;

}  // namespace zerorun::config::keys
