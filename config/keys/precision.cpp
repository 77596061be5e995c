// Keys for the dtypes of training and for loss scaling.
#include "config/keys/tables.h"

namespace zerorun::config::keys {

// The largest power of two in fp32, the dtype in which the loss is multiplied by its scale.
constexpr int largest_power = 127;
constexpr double largest_scale = 0x1p127;

constexpr std::string_view not_fp16 =
    "updates of fp16 weights underflow, and only bf16 has bf16_master_weights_and_grads";
constexpr std::string_view of_apex =
    "remove it: it is a setting of apex amp, and DeepSpeed refuses it here too";
constexpr std::string_view on_or_off = "write an object such as {\"enabled\": true}";
constexpr std::string_view bf16_instead =
    "write \"bf16\": {\"enabled\": true} or \"fp16\": {\"enabled\": true} instead";
constexpr std::string_view autocast_dtypes = "bfloat16 bf16 torch.bfloat16 float16 fp16 half torch.float16";

static constexpr KeyFact precision_rows[] = {
    feature("fp16", "training in fp16 with loss scaling").with_auto().advise(on_or_off),
    boolean(".enabled", "false", "parameters and activations are in fp16").filled_by(program),
    boolean(".auto_cast", "false", "the engine's cast_input() converts inputs to fp16"),
    number(".loss_scale", "0", "loss scale; 0: dynamic loss scaling")
        .range_of(0, largest_scale)
        .advise("write a loss scale such as 128, or 0 for dynamic loss scaling"),
    integer(".initial_scale_power", "16", "the initial loss scale is 2 to this power")
        .range_of(0, largest_power),
    integer(".loss_scale_window", "1000", "number of steps without overflow before the loss scale is doubled")
        .least(0),
    integer(".hysteresis", "2", "number of overflows before the loss scale is halved").least(0),
    boolean(".consecutive_hysteresis", "false", "every step without overflow resets the count of hysteresis"),
    integer(".min_loss_scale", "1", "minimum loss scale; a run that needs a smaller one fails").least(0),
    boolean(".fp16_master_weights_and_grads", "false", "keep master weights and gradients in fp16")
        .refused(not_fp16),
    text(".fp16_opt_level", "", "a setting of apex").replaced_by(of_apex),
    text(".opt_level", "", "a setting of apex").replaced_by(of_apex),
    feature("bf16", "training in bfloat16").with_auto().advise(on_or_off),
    boolean(".enabled", "false", "parameters and activations are in bfloat16").filled_by(program),
    boolean(".immediate_grad_update", "false", "add each gradient to its fp32 sum as soon as it is computed")
        .no_effect("gradients are always added as soon as they are computed"),
    boolean(".check_grad_overflow", "true", "skip steps whose gradients are not finite")
        .no_effect("gradients are always checked, and a step whose gradients are not finite is skipped"),
    boolean(
        ".bf16_master_weights_and_grads", "false",
        "update the bfloat16 parameters themselves, without fp32 master weights, and accumulate gradients in "
        "bfloat16 unless data_types.grad_accum_dtype is fp32"),
    boolean(".bf16_optimizer_states", "false", "keep optimizer states in bfloat16"),
    old_name("bfloat16", "bf16"),
    old_name("bfloat16.enabled", "bf16.enabled"),
    old_name("bfloat16.immediate_grad_update", "bf16.immediate_grad_update"),
    old_name("bfloat16.check_grad_overflow", "bf16.check_grad_overflow"),
    old_name("bfloat16.bf16_master_weights_and_grads", "bf16.bf16_master_weights_and_grads"),
    old_name("bfloat16.bf16_optimizer_states", "bf16.bf16_optimizer_states"),
    object("amp", "mixed precision of apex")
        .switched_by("enabled")
        .refused("apex is a Python package")
        .removed_from_deepspeed()
        .advise(bf16_instead),
    feature("torch_autocast", "mixed precision by autocast: parameters stay fp32, and operators cast them"),
    boolean(
        ".enabled", "false",
        "run forwards under autocast: those of the Python engine and of pipelines, and in C++ those within "
        "engine.autocast()"),
    choice(".dtype", "\"bfloat16\"", autocast_dtypes, "dtype of autocast")
        .unsupported("float16 fp16 half torch.float16")
        .nearest("float16:bfloat16 fp16:bf16 half:bfloat16 torch.float16:torch.bfloat16"),
    texts(".lower_precision_safe_modules", "",
          "classes of modules whose gradients travel in autocast's dtype")
        .or_null()
        .no_effect("gradients travel in communication_data_type"),
    section("data_types", "dtypes of gradients, parameters and buffers"),
    choice(".grad_accum_dtype", "\"fp32\"", "fp32 fp16 bf16",
           "dtype in which gradients are accumulated: fp32, or the dtype of training, which is DeepSpeed's "
           "default")
        .or_null(),
    choice(".param_dtype", "", "fp32 fp16 bf16",
           "dtype of the parameters; it must agree with the sections fp16 and bf16")
        .or_null(),
    choice(
        ".buffer_dtype", "", "fp32 fp16 bf16",
        "dtype to which the module's floating-point buffers are converted; by default they are not converted")
        .or_null(),
    texts(".keep_in_fp32_modules", "",
          "patterns of the names of buffers that stay fp32 under 16-bit training, where * stands for any "
          "characters; \"auto\": in Python those that a transformers model names for itself")
        .filled_by(Automatic::fallback),
    boolean(".master_from_fp32", "false",
            "initialize master weights from the parameters before they are rounded to 16 bits; DeepSpeed "
            "does not have this key and ignores it"),
    boolean("zerorun.stochastic_rounding", "false",
            "round updated bfloat16 weights and optimizer states at random to one of the two nearest "
            "numbers, so that small steps count on average, instead of to the nearest (docs/guide.md)"),
    boolean("zerorun.optimizer_states_in_8_bits", "false",
            "keep the optimizer states of Adam, AdamW and Lion in 8 bits, with a scale for each 256 elements "
            "(docs/guide.md)"),
    integer("zerorun.rounding_seed", "0", "seed of zerorun.stochastic_rounding").least(0),
};

const std::span<const KeyFact> precision = precision_rows;

}  // namespace zerorun::config::keys
