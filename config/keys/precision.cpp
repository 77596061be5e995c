// Dtypes of training, and loss scaling.
#include "config/keys/tables.h"

namespace zerorun {
namespace {

using namespace keys;

// The largest power of two in fp32, in which the loss is multiplied by its scale.
constexpr int largest_power = 127;
constexpr double largest_scale = 0x1p127;

constexpr std::string_view fp32_master = "master weights and the states of optimizers are in fp32";
constexpr std::string_view converted = "parameters are converted as fp16 and bf16 say";
constexpr std::string_view of_apex = "remove it: it belongs to apex amp, and DeepSpeed refuses it here";
constexpr std::string_view on_or_off = "write an object such as {\"enabled\": true}";
constexpr std::string_view bf16_instead =
    "write \"bf16\": {\"enabled\": true} or \"fp16\": {\"enabled\": true} instead";

constexpr KeyFact rows[] = {
    section("fp16", "training in fp16 with a scaled loss").switched_by("enabled").advise(on_or_off),
    boolean("fp16.enabled", "false", "parameters and activations are in fp16").filled_by(program),
    boolean("fp16.auto_cast", "false", "the engine's cast_input() converts inputs to fp16")
        .filled_by(fallback),
    number("fp16.loss_scale", "0", "factor of the loss; 0: found while training")
        .range_of(0, largest_scale)
        .filled_by(fallback)
        .advise("write a factor such as 128, or 0 for one that is found while training"),
    integer("fp16.initial_scale_power", "16", "the first factor is 2 to this power")
        .range_of(0, largest_power)
        .filled_by(fallback),
    integer("fp16.loss_scale_window", "1000", "steps without overflow before the factor doubles")
        .least(0)
        .filled_by(fallback),
    integer("fp16.hysteresis", "2", "overflows before the factor is halved").least(0).filled_by(fallback),
    boolean("fp16.consecutive_hysteresis", "false", "a step without overflow makes the count begin again")
        .filled_by(fallback),
    integer("fp16.min_loss_scale", "1", "smallest factor: a run that needs a smaller one ends")
        .least(0)
        .filled_by(fallback),
    boolean("fp16.fp16_master_weights_and_grads", "false", "keep master weights and gradients in fp16")
        .filled_by(fallback)
        .refused(fp32_master),
    text("fp16.fp16_opt_level", "", "an option of apex").replaced_by(of_apex),
    text("fp16.opt_level", "", "an option of apex").replaced_by(of_apex),
    section("bf16", "training in bfloat16").switched_by("enabled").advise(on_or_off),
    boolean("bf16.enabled", "false", "parameters and activations are in bfloat16").filled_by(program),
    boolean("bf16.immediate_grad_update", "false", "add each gradient to its fp32 sum as it comes")
        .filled_by(fallback)
        .no_effect("gradients are taken into their sum as they come, always"),
    boolean("bf16.check_grad_overflow", "true", "skip steps whose gradients are not finite")
        .filled_by(fallback)
        .no_effect("gradients are always checked, and a step with one that is not finite is skipped"),
    boolean("bf16.bf16_master_weights_and_grads", "false", "keep master weights and gradients in bfloat16")
        .filled_by(fallback)
        .refused(fp32_master),
    boolean("bf16.bf16_optimizer_states", "false", "keep optimizer states in bfloat16")
        .filled_by(fallback)
        .refused(fp32_master),
    section("bfloat16", "old name of bf16").old_name_of("bf16"),
    boolean("bfloat16.enabled", "", "old name of bf16.enabled")
        .filled_by(program)
        .old_name_of("bf16.enabled"),
    boolean("bfloat16.immediate_grad_update", "", "old name of bf16.immediate_grad_update")
        .filled_by(fallback)
        .old_name_of("bf16.immediate_grad_update"),
    boolean("bfloat16.check_grad_overflow", "", "old name of bf16.check_grad_overflow")
        .filled_by(fallback)
        .old_name_of("bf16.check_grad_overflow"),
    boolean("bfloat16.bf16_master_weights_and_grads", "", "old name of bf16.bf16_master_weights_and_grads")
        .filled_by(fallback)
        .old_name_of("bf16.bf16_master_weights_and_grads"),
    boolean("bfloat16.bf16_optimizer_states", "", "old name of bf16.bf16_optimizer_states")
        .filled_by(fallback)
        .old_name_of("bf16.bf16_optimizer_states"),
    section("amp", "mixed precision of apex").switched_by("enabled").not_offered(converted),
    boolean("amp.enabled", "false", "use apex")
        .filled_by(program)
        .refused("apex is a Python package")
        .advise(bf16_instead),
    choice("amp.opt_level", "", "O0 O1 O2 O3", "how apex mixes precisions")
        .filled_by(program)
        .not_offered(converted),
    section("torch_autocast", "mixed precision operator by operator")
        .switched_by("enabled")
        .not_offered("the program enters autocast itself"),
    boolean("torch_autocast.enabled", "false", "use autocast")
        .refused("the program enters autocast itself")
        .advise("remove it, or convert the parameters with bf16 or fp16"),
    text("torch_autocast.dtype", "", "dtype of autocast").not_offered("the program enters autocast itself"),
    texts("torch_autocast.lower_precision_safe_modules", "", "classes of modules that may be in 16 bits")
        .or_null()
        .not_offered("the program enters autocast itself"),
    section("data_types", "dtypes of what training keeps"),
    choice("data_types.grad_accum_dtype", "\"fp32\"", "fp32 fp16 bf16",
           "dtype in which gradients are added up: fp32 or that of training, which is DeepSpeed's default")
        .or_null(),
    choice("data_types.param_dtype", "", "fp32 fp16 bf16",
           "dtype of training once more: it must be what fp16 and bf16 say")
        .or_null(),
    choice(
        "data_types.buffer_dtype", "", "fp32 fp16 bf16",
        "dtype to which the module's floating-point buffers are converted; by default they stay as they are")
        .or_null(),
    boolean("data_types.master_from_fp32", "false",
            "master weights begin with the digits that parameters lose when they are converted to 16 bits; "
            "DeepSpeed has no such key and passes over it"),
};

}  // namespace

std::span<const KeyFact> precision_keys() {
  return rows;
}

}  // namespace zerorun
