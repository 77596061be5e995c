// Keys for the dtypes of training and for loss scaling.
#include "config/keys/tables.h"

namespace zerorun::keys {

// The largest power of two in fp32, the dtype in which the loss is multiplied by its scale.
constexpr int largest_power = 127;
constexpr double largest_scale = 0x1p127;

constexpr std::string_view fp32_master = "master weights and the states of optimizers are in fp32";
constexpr std::string_view converted = "parameters are converted as fp16 and bf16 say";
constexpr std::string_view of_apex = "remove it: it belongs to apex amp, and DeepSpeed refuses it here";
constexpr std::string_view on_or_off = "write an object such as {\"enabled\": true}";
constexpr std::string_view bf16_instead =
    "write \"bf16\": {\"enabled\": true} or \"fp16\": {\"enabled\": true} instead";

static constexpr KeyFact rows[] = {
    feature("fp16", "training in fp16 with a scaled loss").with_auto().advise(on_or_off),
    boolean(".enabled", "false", "parameters and activations are in fp16").filled_by(program),
    boolean(".auto_cast", "false", "the engine's cast_input() converts inputs to fp16"),
    number(".loss_scale", "0", "factor of the loss; 0: found while training")
        .range_of(0, largest_scale)
        .advise("write a factor such as 128, or 0 for one that is found while training"),
    integer(".initial_scale_power", "16", "the first factor is 2 to this power").range_of(0, largest_power),
    integer(".loss_scale_window", "1000", "steps without overflow before the factor doubles").least(0),
    integer(".hysteresis", "2", "overflows before the factor is halved").least(0),
    boolean(".consecutive_hysteresis", "false", "a step without overflow makes the count begin again"),
    integer(".min_loss_scale", "1", "smallest factor: a run that needs a smaller one ends").least(0),
    boolean(".fp16_master_weights_and_grads", "false", "keep master weights and gradients in fp16")
        .refused(fp32_master),
    text(".fp16_opt_level", "", "an option of apex").replaced_by(of_apex),
    text(".opt_level", "", "an option of apex").replaced_by(of_apex),
    feature("bf16", "training in bfloat16").with_auto().advise(on_or_off),
    boolean(".enabled", "false", "parameters and activations are in bfloat16").filled_by(program),
    boolean(".immediate_grad_update", "false", "add each gradient to its fp32 sum as it comes")
        .no_effect("gradients are taken into their sum as they come, always"),
    boolean(".check_grad_overflow", "true", "skip steps whose gradients are not finite")
        .no_effect("gradients are always checked, and a step with one that is not finite is skipped"),
    boolean(".bf16_master_weights_and_grads", "false", "keep master weights and gradients in bfloat16")
        .refused(fp32_master),
    boolean(".bf16_optimizer_states", "false", "keep optimizer states in bfloat16").refused(fp32_master),
    old_name("bfloat16", "bf16"),
    old_name("bfloat16.enabled", "bf16.enabled"),
    old_name("bfloat16.immediate_grad_update", "bf16.immediate_grad_update"),
    old_name("bfloat16.check_grad_overflow", "bf16.check_grad_overflow"),
    old_name("bfloat16.bf16_master_weights_and_grads", "bf16.bf16_master_weights_and_grads"),
    old_name("bfloat16.bf16_optimizer_states", "bf16.bf16_optimizer_states"),
    feature("amp", "mixed precision of apex").not_offered(converted),
    boolean(".enabled", "false", "use apex")
        .filled_by(program)
        .refused("apex is a Python package")
        .advise(bf16_instead),
    choice(".opt_level", "", "O0 O1 O2 O3", "how apex mixes precisions").filled_by(program),
    feature("torch_autocast", "mixed precision operator by operator")
        .not_offered("the program enters autocast itself"),
    boolean(".enabled", "false", "use autocast")
        .refused()
        .advise("remove it, or convert the parameters with bf16 or fp16"),
    text(".dtype", "", "dtype of autocast"),
    texts(".lower_precision_safe_modules", "", "classes of modules that may be in 16 bits").or_null(),
    section("data_types", "dtypes of what training keeps"),
    choice(".grad_accum_dtype", "\"fp32\"", "fp32 fp16 bf16",
           "dtype in which gradients are added up: fp32 or that of training, which is DeepSpeed's default")
        .or_null(),
    choice(".param_dtype", "", "fp32 fp16 bf16",
           "dtype of training once more: it must be what fp16 and bf16 say")
        .or_null(),
    choice(
        ".buffer_dtype", "", "fp32 fp16 bf16",
        "dtype to which the module's floating-point buffers are converted; by default they stay as they are")
        .or_null(),
    boolean(".master_from_fp32", "false",
            "master weights begin with the digits that parameters lose when they are converted to 16 bits; "
            "DeepSpeed has no such key and passes over it"),
};

const std::span<const KeyFact> precision = rows;

}  // namespace zerorun::keys
