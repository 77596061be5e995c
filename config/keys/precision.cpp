// Dtypes of training.
#include "config/keys/tables.h"

namespace zerorun {
namespace {

using namespace keys;

constexpr std::string_view fp32_only = "training is in fp32";

constexpr KeyFact rows[] = {
    section("fp16", "training in 16 bits with a scaled loss")
        .switched_by("enabled")
        .not_offered(fp32_only)
        .advise("write an object such as {\"enabled\": false}"),
    boolean("fp16.enabled", "false", "train in fp16")
        .filled_by(program)
        .refused(fp32_only)
        .advise("write false, or leave the key out"),
    boolean("fp16.auto_cast", "false", "convert inputs to fp16").filled_by(fallback).not_offered(fp32_only),
    number("fp16.loss_scale", "0", "factor of the loss; 0: found while training")
        .least(0)
        .filled_by(fallback)
        .not_offered(fp32_only),
    integer("fp16.initial_scale_power", "16", "the first factor is 2 to this power")
        .least(0)
        .filled_by(fallback)
        .not_offered(fp32_only),
    integer("fp16.loss_scale_window", "1000", "steps without overflow before the factor doubles")
        .least(0)
        .filled_by(fallback)
        .not_offered(fp32_only),
    integer("fp16.hysteresis", "2", "overflows before the factor is halved")
        .least(0)
        .filled_by(fallback)
        .not_offered(fp32_only),
    boolean("fp16.consecutive_hysteresis", "false", "a step without overflow makes the count begin again")
        .filled_by(fallback)
        .not_offered(fp32_only),
    integer("fp16.min_loss_scale", "1", "smallest factor")
        .least(0)
        .filled_by(fallback)
        .not_offered(fp32_only),
    boolean("fp16.fp16_master_weights_and_grads", "false", "keep master weights and gradients in fp16")
        .filled_by(fallback)
        .not_offered(fp32_only),
    text("fp16.fp16_opt_level", "", "an option of apex").no_effect("it belongs to apex amp"),
    text("fp16.opt_level", "", "an option of apex").no_effect("it belongs to apex amp"),
    section("bf16", "training in bfloat16")
        .switched_by("enabled")
        .not_offered(fp32_only)
        .advise("write an object such as {\"enabled\": false}"),
    boolean("bf16.enabled", "false", "train in bfloat16")
        .filled_by(program)
        .refused(fp32_only)
        .advise("write false, or leave the key out"),
    boolean("bf16.immediate_grad_update", "false", "add each gradient to its fp32 sum as it comes")
        .filled_by(fallback)
        .not_offered(fp32_only),
    boolean("bf16.check_grad_overflow", "true", "skip steps whose gradients are not finite")
        .filled_by(fallback)
        .not_offered(fp32_only),
    boolean("bf16.bf16_master_weights_and_grads", "false", "keep master weights and gradients in bfloat16")
        .filled_by(fallback)
        .not_offered(fp32_only),
    boolean("bf16.bf16_optimizer_states", "false", "keep optimizer states in bfloat16")
        .filled_by(fallback)
        .not_offered(fp32_only),
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
    section("amp", "mixed precision of apex").switched_by("enabled").not_offered(fp32_only),
    boolean("amp.enabled", "false", "use apex")
        .filled_by(program)
        .refused("apex is a Python package: training is in fp32"),
    choice("amp.opt_level", "", "O0 O1 O2 O3", "how apex mixes precisions")
        .filled_by(program)
        .not_offered(fp32_only),
    section("torch_autocast", "mixed precision operator by operator")
        .switched_by("enabled")
        .not_offered(fp32_only),
    boolean("torch_autocast.enabled", "false", "use autocast")
        .refused("the program enters autocast itself; parameters stay in fp32"),
    text("torch_autocast.dtype", "", "dtype of autocast").not_offered(fp32_only),
    texts("torch_autocast.lower_precision_safe_modules", "", "classes of modules that may be in 16 bits")
        .or_null()
        .not_offered(fp32_only),
    section("data_types", "dtypes of what training keeps"),
    choice("data_types.grad_accum_dtype", "", "fp32 fp16 bf16", "dtype in which gradients are accumulated")
        .or_null()
        .to_come("fp16 bf16"),
    choice("data_types.param_dtype", "", "fp32 fp16 bf16", "dtype to which parameters are converted")
        .or_null()
        .to_come("fp16 bf16"),
    choice("data_types.buffer_dtype", "", "fp32 fp16 bf16",
           "dtype to which the module's buffers are converted")
        .or_null()
        .to_come("fp16 bf16"),
};

}  // namespace

std::span<const KeyFact> precision_keys() {
  return rows;
}

}  // namespace zerorun
