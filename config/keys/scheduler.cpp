// The learning-rate schedule.
#include "config/keys/tables.h"

namespace zerorun {
namespace {

using namespace keys;

// DeepSpeed's own, then those that it looks up in torch.optim.lr_scheduler.
constexpr std::string_view all_types =
    "WarmupLR WarmupDecayLR WarmupCosineLR OneCycle LRRangeTest LambdaLR MultiplicativeLR StepLR MultiStepLR "
    "ConstantLR LinearLR ExponentialLR PolynomialLR CosineAnnealingLR CosineAnnealingWarmRestarts "
    "ReduceLROnPlateau CyclicLR OneCycleLR";
constexpr std::string_view types_to_come =
    "WarmupCosineLR OneCycle LRRangeTest LambdaLR MultiplicativeLR StepLR MultiStepLR ConstantLR LinearLR "
    "ExponentialLR PolynomialLR CosineAnnealingLR CosineAnnealingWarmRestarts ReduceLROnPlateau CyclicLR "
    "OneCycleLR";

constexpr KeyFact rows[] = {
    section("scheduler", "the learning-rate schedule, which step() advances").or_null(),
    choice("scheduler.type", "", all_types, "which schedule")
        .to_come(types_to_come)
        .advise("write WarmupLR or WarmupDecayLR"),
    section("scheduler.params", "its parameters"),
    number("scheduler.params.warmup_min_lr", "0.0", "learning rate at the start")
        .least(0)
        .for_types("WarmupLR WarmupDecayLR")
        .filled_by(program)
        .advise("write one learning rate for all parameter groups"),
    number("scheduler.params.warmup_max_lr", "",
           "learning rate after the warm-up; WarmupLR: by default the optimizer's, WarmupDecayLR: 0.001")
        .least(0)
        .for_types("WarmupLR WarmupDecayLR")
        .or_null()
        .filled_by(program)
        .advise("write one learning rate for all parameter groups"),
    integer("scheduler.params.warmup_num_steps", "1000", "optimizer steps of the warm-up; 1 acts as 2")
        .least(0)
        .for_types("WarmupLR WarmupDecayLR WarmupCosineLR")
        .filled_by(program)
        .advise("write a number of optimizer steps, or leave the key out for 1000"),
    choice("scheduler.params.warmup_type", "\"log\"", "log linear", "shape of the warm-up")
        .for_types("WarmupLR WarmupDecayLR WarmupCosineLR")
        .advise("write \"log\" or \"linear\", or leave the key out for \"log\""),
    integer("scheduler.params.total_num_steps", "", "optimizer steps of the whole run")
        .least(1)
        .for_types("WarmupDecayLR WarmupCosineLR")
        .filled_by(program)
        .advise("write the number of optimizer steps of the whole run"),
    number("scheduler.params.warmup_min_ratio", "0.0",
           "learning rate at the start, as a share of the optimizer's")
        .for_types("WarmupCosineLR")
        .not_offered("it belongs to a schedule that is not offered"),
    number("scheduler.params.cos_min_ratio", "0.0001",
           "learning rate at the end, as a share of the optimizer's")
        .for_types("WarmupCosineLR")
        .not_offered("it belongs to a schedule that is not offered"),
    integer("scheduler.params.last_batch_iteration", "-1", "where a schedule goes on")
        .range_of(-1, -1)
        .advise("leave the key out: a schedule starts at the beginning"),
    anything("scheduler.params.lr_range_test_min_lr",
             "learning rate at the start: one number, or one a parameter group")
        .for_types("LRRangeTest")
        .not_offered("it belongs to a schedule that is not offered"),
    integer("scheduler.params.lr_range_test_step_size", "2000", "steps from one rise to the next")
        .for_types("LRRangeTest")
        .not_offered("it belongs to a schedule that is not offered"),
    number("scheduler.params.lr_range_test_step_rate", "1.0", "size of a rise")
        .for_types("LRRangeTest")
        .not_offered("it belongs to a schedule that is not offered"),
    boolean("scheduler.params.lr_range_test_staircase", "false", "rise in steps, not evenly")
        .for_types("LRRangeTest")
        .not_offered("it belongs to a schedule that is not offered"),
    anything("scheduler.params.cycle_min_lr",
             "lowest learning rate of the cycle: one number, or one a parameter group")
        .for_types("OneCycle")
        .not_offered("it belongs to a schedule that is not offered"),
    anything("scheduler.params.cycle_max_lr",
             "highest learning rate of the cycle: one number, or one a parameter group")
        .for_types("OneCycle")
        .not_offered("it belongs to a schedule that is not offered"),
    number("scheduler.params.decay_lr_rate", "0.0", "decay after the cycle")
        .for_types("OneCycle")
        .not_offered("it belongs to a schedule that is not offered"),
    integer("scheduler.params.cycle_first_step_size", "2000", "steps of the rise")
        .for_types("OneCycle")
        .not_offered("it belongs to a schedule that is not offered"),
    integer("scheduler.params.cycle_second_step_size", "", "steps of the fall; by default those of the rise")
        .or_null()
        .for_types("OneCycle")
        .not_offered("it belongs to a schedule that is not offered"),
    integer("scheduler.params.cycle_first_stair_count", "0", "stairs of the rise")
        .for_types("OneCycle")
        .not_offered("it belongs to a schedule that is not offered"),
    integer("scheduler.params.cycle_second_stair_count", "", "stairs of the fall")
        .or_null()
        .for_types("OneCycle")
        .not_offered("it belongs to a schedule that is not offered"),
    integer("scheduler.params.decay_step_size", "0", "steps from one decay to the next")
        .for_types("OneCycle")
        .not_offered("it belongs to a schedule that is not offered"),
    boolean("scheduler.params.cycle_momentum", "true", "move the momentum too")
        .for_types("OneCycle")
        .not_offered("it belongs to a schedule that is not offered"),
    number("scheduler.params.cycle_min_mom", "0.8", "lowest momentum")
        .for_types("OneCycle")
        .not_offered("it belongs to a schedule that is not offered"),
    number("scheduler.params.cycle_max_mom", "0.9", "highest momentum")
        .for_types("OneCycle")
        .not_offered("it belongs to a schedule that is not offered"),
    number("scheduler.params.decay_mom_rate", "0.0", "decay of the momentum after the cycle")
        .for_types("OneCycle")
        .not_offered("it belongs to a schedule that is not offered"),
};

}  // namespace

std::span<const KeyFact> scheduler_keys() {
  return rows;
}

}  // namespace zerorun
