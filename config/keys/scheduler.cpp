// Keys of the learning-rate schedule.
#include "config/keys/tables.h"

namespace zerorun::config::keys {

// DeepSpeed's own types, followed by types that it looks up in torch.optim.lr_scheduler.
constexpr std::string_view all_schedules =
    "WarmupLR WarmupDecayLR WarmupCosineLR OneCycle LRRangeTest LambdaLR MultiplicativeLR StepLR MultiStepLR "
    "ConstantLR LinearLR ExponentialLR PolynomialLR CosineAnnealingLR CosineAnnealingWarmRestarts "
    "ReduceLROnPlateau CyclicLR OneCycleLR";
constexpr std::string_view unsupported_schedules =
    "LambdaLR MultiplicativeLR StepLR MultiStepLR ConstantLR LinearLR ExponentialLR PolynomialLR "
    "CosineAnnealingLR CosineAnnealingWarmRestarts ReduceLROnPlateau CyclicLR OneCycleLR";
constexpr std::string_view types_with_warmup = "WarmupLR WarmupDecayLR WarmupCosineLR";

/// A learning rate: one number, or one number per parameter group.
constexpr KeyFact rate(std::string_view path, std::string_view fallback, std::string_view meaning) {
  return number(path, fallback, meaning)
      .least(0)
      .or_list()
      .advise("write a learning rate, or a list with one for each parameter group");
}

static constexpr KeyFact scheduler_rows[] = {
    section("scheduler", "the learning-rate schedule, which step() advances").or_null(),
    choice(".type", "", all_schedules, "name of the schedule")
        .unsupported(unsupported_schedules)
        .advise("write WarmupDecayLR for a linear decay, WarmupCosineLR for a cosine, OneCycle for a cycle, "
                "or give initialize() a schedule of the program (InitializeOptions::schedule, lr_scheduler)"),
    section("scheduler.params", "parameters of the schedule"),
    rate(".warmup_min_lr", "0.0", "learning rate at the start")
        .for_types("WarmupLR WarmupDecayLR")
        .filled_by(program),
    rate(".warmup_max_lr", "",
         "learning rate after the warm-up; WarmupLR: by default the optimizer's, WarmupDecayLR: 0.001")
        .for_types("WarmupLR WarmupDecayLR")
        .or_null()
        .filled_by(program),
    integer(
        ".warmup_num_steps", "1000",
        "number of optimizer steps of the warm-up; 1 has the same effect as 2, and so has 0, with a warning")
        .least(0)
        .for_types(types_with_warmup)
        .filled_by(program)
        .advise("write a number of optimizer steps (1 for no warm-up, with the same effect as 2), or leave "
                "the key out for 1000"),
    choice(".warmup_type", "\"log\"", "log linear", "shape of the warm-up")
        .for_types(types_with_warmup)
        .advise("write \"log\" or \"linear\", or leave the key out for \"log\""),
    integer(".total_num_steps", "", "number of optimizer steps of the whole run")
        .least(1)
        .for_types("WarmupDecayLR WarmupCosineLR")
        .filled_by(program)
        .advise("write the number of optimizer steps of the whole run"),
    number(".warmup_min_ratio", "0.0", "learning rate at the start, as a fraction of the optimizer's lr")
        .least(0)
        .for_types("WarmupCosineLR"),
    number(".cos_min_ratio", "0.0001", "learning rate at the end, as a fraction of the optimizer's lr")
        .least(0)
        .for_types("WarmupCosineLR"),
    integer(".last_batch_iteration", "-1", "step from which the schedule continues")
        .range_of(-1, -1)
        .advise("leave the key out: a schedule starts at the beginning"),
    rate(".lr_range_test_min_lr", "0.001", "learning rate at the start").for_types("LRRangeTest"),
    integer(".lr_range_test_step_size", "2000", "number of optimizer steps between two increases")
        .least(1)
        .for_types("LRRangeTest")
        .advise("write a number of optimizer steps, or leave the key out for 2000"),
    number(".lr_range_test_step_rate", "1.0",
           "size of an increase, as a fraction of the initial learning rate")
        .least(0)
        .for_types("LRRangeTest"),
    boolean(".lr_range_test_staircase", "false", "increase in discrete steps instead of continuously")
        .for_types("LRRangeTest"),
    rate(".cycle_min_lr", "", "lowest learning rate of the cycle").for_types("OneCycle"),
    rate(".cycle_max_lr", "", "highest learning rate of the cycle").for_types("OneCycle"),
    number(".decay_lr_rate", "0.0",
           "decay after the cycle: the lowest learning rate is divided by 1 + this for each decay_step_size")
        .least(0)
        .for_types("OneCycle"),
    integer(".cycle_first_step_size", "2000", "number of optimizer steps in which the learning rate rises")
        .least(1)
        .for_types("OneCycle")
        .advise("write a number of optimizer steps, or leave the key out for 2000"),
    integer(".cycle_second_step_size", "",
            "number of optimizer steps in which the learning rate falls; by default cycle_first_step_size")
        .least(0)
        .or_null()
        .for_types("OneCycle")
        .advise("write a number of optimizer steps, or leave the key out for cycle_first_step_size"),
    integer(".cycle_first_stair_count", "0", "number of discrete steps of the rise; 0: continuous")
        .for_types("OneCycle"),
    integer(".cycle_second_stair_count", "",
            "number of discrete steps of the fall; by default cycle_first_stair_count")
        .or_null()
        .for_types("OneCycle"),
    integer(".decay_step_size", "0", "number of optimizer steps between two decays; 0: no decay")
        .least(0)
        .for_types("OneCycle")
        .advise("write a number of optimizer steps, or leave the key out for no decay"),
    boolean(".cycle_momentum", "true",
            "cycle the momentum (the first of betas) inversely to the learning rate and set the second to "
            "0.99; no effect on optimizers without betas")
        .for_types("OneCycle"),
    number(".cycle_min_mom", "0.8", "lowest momentum")
        .from_below(0, 1)
        .or_list()
        .for_types("OneCycle")
        .advise("write a momentum such as 0.8, or a list with one for each parameter group"),
    number(".cycle_max_mom", "0.9", "highest momentum of the cycle")
        .from_below(0, 1)
        .or_list()
        .for_types("OneCycle")
        .advise("write a momentum such as 0.9, or a list with one for each parameter group"),
    number(".decay_mom_rate", "0.0",
           "growth after the cycle: the highest momentum is multiplied by 1 + this for each decay_step_size")
        .for_types("OneCycle"),
};

const std::span<const KeyFact> scheduler = scheduler_rows;

}  // namespace zerorun::config::keys
