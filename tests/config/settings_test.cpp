// Tests the value that each accepted setting gets, and the message about each wrong setting.
#include <catch2/catch.hpp>
#include <string>
#include <vector>

#include "tests/config/refusal.h"

using namespace zerorun;
using namespace zerorun::test;

namespace {

Config parse(const std::string& settings) {
  return parse_config(with(settings), "conf", 1);
}

template <typename Optimizer>
Optimizer optimizer(const std::string& type, const std::string& params) {
  const Config config = parse(R"("optimizer": {"type": ")" + type + R"(", "params": {)" + params + "}}");
  REQUIRE(config.optimizer);
  REQUIRE(std::holds_alternative<Optimizer>(*config.optimizer));
  return std::get<Optimizer>(*config.optimizer);
}

/// CHECKs that a run refuses each row with a message that contains the row's texts.
void check_refused(const std::vector<MarkedRefusal>& rows) {
  for (const MarkedRefusal& row : rows) {
    INFO(row.settings);
    const Refusal found = refusal_of(row);
    CHECK_THAT(found.expected, Catch::Contains(row.expected));
    CHECK_THAT(found.found, Catch::Contains(row.found));
    CHECK_THAT(found.remedy, Catch::Contains(row.remedy));
  }
}

}  // namespace

TEST_CASE("keys that are left out have DeepSpeed's defaults") {
  const Config config = parse("");
  CHECK(config.batch.train_batch_size == 2);
  CHECK(!config.optimizer);
  CHECK(!config.scheduler);
  CHECK(config.zero.stage == 0);
  CHECK(config.zero.reduce_bucket_size == 500'000'000);
  CHECK(config.zero.allgather_bucket_size == 500'000'000);
  CHECK(!config.zero.overlap_comm);
  CHECK(config.gradient_clipping == 1.0);
  CHECK(!config.steps_per_print);
  CHECK(!config.wall_clock_breakdown);
  CHECK(!config.prescale_gradients);
  CHECK(config.gradient_predivide_factor == 1.0);
  CHECK(config.average_gradients);
  CHECK(told(config).empty());
}

TEST_CASE("settings are read into the Config") {
  const Config config =
      parse(R"("gradient_clipping": 0.1, "steps_per_print": 1e1, "wall_clock_breakdown": true,
    "prescale_gradients": true, "gradient_predivide_factor": 2,
    "zero_optimization": {"stage": 2.0, "reduce_bucket_size": 5e3, "allgather_bucket_size": 15099494,
                          "overlap_comm": true})");
  CHECK(config.gradient_clipping == 0.1);
  CHECK(config.steps_per_print == 10);
  CHECK(config.wall_clock_breakdown);
  CHECK(config.prescale_gradients);
  CHECK(config.gradient_predivide_factor == 2.0);
  CHECK(config.zero.stage == 2);
  CHECK(config.zero.reduce_bucket_size == 5000);
  CHECK(config.zero.allgather_bucket_size == 15'099'494);
  CHECK(config.zero.overlap_comm);
  CHECK(parse(R"("gradient_clipping": 0)").gradient_clipping == 0.0);
  const Config nulls = parse(R"("steps_per_print": null, "optimizer": null, "scheduler": null,
                                "zero_optimization": {"overlap_comm": null})");
  CHECK(!nulls.steps_per_print);
  CHECK(!nulls.optimizer);
  CHECK(told(nulls).empty());
}

TEST_CASE("the type and adam_w_mode decide how weight decays") {
  CHECK(optimizer<AdamConfig>("Adam", "").decoupled);
  CHECK(optimizer<AdamConfig>("Adam", R"("adam_w_mode": true)").decoupled);
  CHECK(!optimizer<AdamConfig>("Adam", R"("adam_w_mode": false)").decoupled);
  CHECK(optimizer<AdamConfig>("AdamW", "").decoupled);
  CHECK(optimizer<AdamConfig>("AdamW", R"("adam_w_mode": false)").decoupled);
  CHECK(optimizer<AdamConfig>("adamw", "").decoupled);
  CHECK(optimizer<AdamConfig>("ADAM", "").decoupled);
  CHECK(std::holds_alternative<SgdConfig>(*parse(R"("optimizer": {"type": "SGD"})").optimizer));
}

TEST_CASE("a section without keys has the defaults of its struct, so that a key has one default") {
  const Config config = parse(R"("fp16": {"enabled": true}, "zero_optimization": {"stage": 3})");
  const auto sizes = [](const ZeroConfig& zero) {
    return std::tuple(zero.reduce_bucket_size, zero.allgather_bucket_size, zero.max_live_parameters,
                      zero.max_reuse_distance, zero.prefetch_bucket_size, zero.param_persistence_threshold,
                      zero.model_persistence_threshold);
  };
  CHECK(sizes(config.zero) == sizes({}));
  const auto offload = [](const ZeroConfig& zero) {
    return std::tuple(zero.offload_optimizer.buffer_count, zero.offload_optimizer.sub_group_size,
                      zero.offload_optimizer.ratio, zero.offload_param.buffer_count,
                      zero.offload_param.max_in_cpu, zero.aio.block_size, zero.aio.queue_depth,
                      zero.aio.threads);
  };
  CHECK(offload(config.zero) == offload({}));
  const auto scale = [](const LossScaleConfig& scale) {
    return std::tuple(scale.fixed, scale.initial, scale.window, scale.hysteresis,
                      scale.consecutive_hysteresis, scale.minimum);
  };
  CHECK(scale(config.precision.loss_scale) == scale({}));
  const auto gradients = [](const Config& config) {
    return std::tuple(config.gradient_clipping, config.prescale_gradients,
                      config.managed_gradient_accumulation, config.gradient_predivide_factor,
                      config.average_gradients);
  };
  CHECK(gradients(config) == gradients({}));
  const auto optimizer = [](const std::string& type) {
    return *parse("\"optimizer\": {\"type\": \"" + type + "\"}").optimizer;
  };
  CHECK(optimizer("AdamW") == OptimizerConfig(AdamConfig{}));
  CHECK(optimizer("SGD") == OptimizerConfig(SgdConfig{}));
  CHECK(optimizer("Adagrad") == OptimizerConfig(AdagradConfig{}));
  CHECK(optimizer("RMSprop") == OptimizerConfig(RmspropConfig{}));
  CHECK(optimizer("Lion") == OptimizerConfig(LionConfig{}));
  CHECK(optimizer("Lamb") == OptimizerConfig(LambConfig{}));
  const auto scheduler = [](const std::string& type, const std::string& params = "") {
    return *parse("\"scheduler\": {\"type\": \"" + type + "\", \"params\": {" + params + "}}").scheduler;
  };
  CHECK(scheduler("WarmupLR") == SchedulerConfig(WarmupLr{}));
  CHECK(scheduler("WarmupDecayLR", "\"total_num_steps\": 5000") ==
        SchedulerConfig(WarmupDecayLr{.total_num_steps = 5000}));
  CHECK(scheduler("WarmupCosineLR", "\"total_num_steps\": 5000") ==
        SchedulerConfig(WarmupCosineLr{.total_num_steps = 5000}));
  CHECK(scheduler("OneCycle", "\"cycle_min_lr\": 0.5, \"cycle_max_lr\": 0.75") ==
        SchedulerConfig(OneCycle{.min_lr = 0.5, .max_lr = 0.75}));
  CHECK(scheduler("LRRangeTest") == SchedulerConfig(LrRangeTest{}));
}

TEST_CASE("weight decay defaults to 0, but to 0.01 for torch's AdamW") {
  CHECK(optimizer<AdamConfig>("AdamW", "").weight_decay == 0.0);
  CHECK(optimizer<AdamConfig>("Adam", "").weight_decay == 0.0);
  CHECK(optimizer<SgdConfig>("SGD", "").weight_decay == 0.0);
  CHECK(optimizer<AdamConfig>("AdamW", R"("torch_adam": true)").weight_decay == 0.01);
  CHECK(optimizer<AdamConfig>("Adam", R"("torch_adam": true)").weight_decay == 0.01);
  CHECK(optimizer<AdamConfig>("Adam", R"("torch_adam": true, "adam_w_mode": false)").weight_decay == 0.0);
  CHECK(optimizer<AdamConfig>("AdamW", R"("weight_decay": 0.5, "torch_adam": true)").weight_decay == 0.5);
}

TEST_CASE("optimizer parameters are read, and each has its default") {
  const AdamConfig adam = optimizer<AdamConfig>("AdamW", R"("lr": 3e-4, "betas": [0.8, 0.95], "eps": 1e-6,
                                                     "weight_decay": 0.1, "bias_correction": false)");
  CHECK(adam.lr == 3e-4);
  CHECK(adam.beta1 == 0.8);
  CHECK(adam.beta2 == 0.95);
  CHECK(adam.eps == 1e-6);
  CHECK(adam.weight_decay == 0.1);
  CHECK(!adam.bias_correction);
  const AdamConfig usual = optimizer<AdamConfig>("Adam", "");
  CHECK(usual.lr == 1e-3);
  CHECK(usual.beta1 == 0.9);
  CHECK(usual.beta2 == 0.999);
  CHECK(usual.eps == 1e-8);
  CHECK(usual.bias_correction);
  const SgdConfig sgd =
      optimizer<SgdConfig>("SGD", R"("lr": 0.05, "momentum": 0.9, "nesterov": true, "weight_decay": 0.01)");
  CHECK(sgd.lr == 0.05);
  CHECK(sgd.momentum == 0.9);
  CHECK(sgd.nesterov);
  CHECK(sgd.weight_decay == 0.01);
  CHECK(optimizer<SgdConfig>("SGD", R"("momentum": 0.9, "dampening": 0.5)").dampening == 0.5);
}

TEST_CASE("a setting that has no effect gets one note with its line, unless it is the default") {
  struct Note {
    std::string settings;
    std::string text;
  };
  const std::vector<Note> notes = {
      {R"("zero_force_ds_cpu_optimizer": false)", "zero_force_ds_cpu_optimizer: false has no effect: "},
      {R"("zero_optimization": {"contiguous_gradients": false})",
       "zero_optimization.contiguous_gradients: false"},
      {R"("zero_optimization": {"reduce_scatter": false})", "zero_optimization.reduce_scatter: false"},
      {R"("zero_optimization": {"allgather_partitions": false})",
       "zero_optimization.allgather_partitions: false"},
      {R"("zero_optimization": {"round_robin_gradients": true})",
       "zero_optimization.round_robin_gradients: true"},
      {R"("optimizer": {"type": "Adam", "params": {"fused": true}})", "optimizer.params.fused: true"},
      {R"("optimizer": {"type": "Adam", "params": {"set_grad_none": false}})",
       "optimizer.params.set_grad_none: false"},
      {R"("optimizer": {"type": "AdamW", "params": {"adam_w_mode": false}})",
       "optimizer.params.adam_w_mode: false"}};
  for (const Note& note : notes) {
    INFO(note.settings);
    const Config config = parse(note.settings);
    REQUIRE(told(config).size() == 1);
    CHECK_THAT(told(config)[0], Catch::StartsWith("conf:2:") && Catch::Contains(": note: " + note.text));
  }
  CHECK(
      told(
          parse(R"("zero_allow_untested_optimizer": false, "zero_optimization": {"contiguous_gradients": true,
      "reduce_scatter": true, "allgather_partitions": true, "round_robin_gradients": false},
      "fp16": {"enabled": false}, "bf16": {"enabled": false},
      "optimizer": {"type": "Adam", "params": {"fused": false, "set_grad_none": true, "adam_w_mode": false,
                    "amsgrad": false}})"))
          .empty());
}

TEST_CASE("fp16 and bf16 may be named with all their keys while they are off") {
  CHECK(told(parse(R"("fp16": {"enabled": false, "loss_scale": 0, "initial_scale_power": 16},
                 "bf16": {"enabled": false, "check_grad_overflow": true})"))
            .empty());
  check_refused(
      {{R"("fp16": @true)", "fp16", "an object", "true", "{\"enabled\": true}"},
       {R"("fp16": {"enabled": @"auto"})", "fp16.enabled", "true or false", "\"auto\"",
        "options.arguments[\"fp16.enabled\"]"},
       {R"("fp16": {@"loss_scal": 0})", "fp16.loss_scal", "known key", "loss_scal", "\"loss_scale\""}});
}

TEST_CASE("wrong values are refused at their place") {
  check_refused({
      {R"("gradient_clipping": @-1)", "gradient_clipping", "at least 0", "-1", "0 for no clipping"},
      {R"("gradient_clipping": @null)", "gradient_clipping", "a number", "null", "leave the key out"},
      {R"("gradient_clipping": @1e-400)", "gradient_clipping", "a number", "too small for a double", "write"},
      {R"("gradient_clipping": @[1])", "gradient_clipping", "a number", "an array", "write"},
      {R"("steps_per_print": @0)", "steps_per_print", "at least 1", "0", "leave the key out"},
      {R"("steps_per_print": @1.5)", "steps_per_print", "an integer", "1.5", "write"},
      {R"("steps_per_print": @1e30)", "steps_per_print", "an integer", "1e30, too large for 64 bits",
       "write"},
      {R"("steps_per_print": @"8.0")", "steps_per_print", "an integer", "\"8.0\"", "leave the key out"},
      {R"("steps_per_print": @"08")", "steps_per_print", "an integer", "\"08\"", "leave the key out"},
      {R"("steps_per_print": @"0")", "steps_per_print", "at least 1", "\"0\"", "leave the key out"},
      {R"("steps_per_print": @true)", "steps_per_print", "an integer", "true", "leave the key out"},
      {R"("wall_clock_breakdown": @"True")", "wall_clock_breakdown", "true or false", "\"True\"", "write"},
      {R"("gradient_clipping": @false)", "gradient_clipping", "a number", "false", "0 for no clipping"},
      {R"("wall_clock_breakdown": @2)", "wall_clock_breakdown", "true or false", "2", "write true or false"},
      {R"("gradient_predivide_factor": @0.0)", "gradient_predivide_factor", "from 1e-06 to 1e+06", "0.0",
       "write"},
      {R"("optimizer": @[])", "optimizer", "an object", "an array", "write"},
      {R"("optimizer": @{})", "optimizer.type", "Adam or AdamW or SGD", "nothing", "write Adam"},
      {R"("optimizer": {"type": @1})", "optimizer.type", "Adam", "1", "write Adam"},
      {R"("optimizer": {"type": @"AdamX"})", "optimizer.type", "Adam", "AdamX", "did you mean \"Adam\"?"},
      {R"("optimizer": {"type": @"sgd"})", "optimizer.type", "SGD", "sgd", "did you mean \"SGD\"?"},
      {R"("optimizer": {"type": @"Adamax"})", "optimizer.type", "Adam", "does not support", "write"},
      {R"("optimizer": {"type": "Adam", "params": {"lr": @-1}})", "optimizer.params.lr", "at least 0", "-1",
       "such as 1e-3"},
      {R"("optimizer": {"type": "Adam", "params": {"lr": @"1e-3"}})", "optimizer.params.lr", "a number",
       "\"1e-3\"", "write 1e-3 without"},
      {R"("optimizer": {"type": "Adam", "params": {"betas": @0.9}})", "optimizer.params.betas", "two numbers",
       "0.9", "[0.9, 0.999]"},
      {R"("optimizer": {"type": "Adam", "params": {"betas": @[0.9]}})", "optimizer.params.betas",
       "two numbers", "an array", "[0.9, 0.999]"},
      {R"("optimizer": {"type": "Adam", "params": {"betas": [0.9, @1.0]}})", "optimizer.params.betas[1]",
       "less than 1", "1.0", "write"},
      {R"("optimizer": {"type": "Adam", "params": {"betas": @"auto"}})", "optimizer.params.betas",
       "two numbers", "\"auto\"", "[0.9, 0.999]"},
      {R"("optimizer": {"type": "Adam", "params": {@"momentum": 0.9}})", "optimizer.params.momentum",
       "a parameter of Adam", "one of SGD", "remove"},
      {R"("optimizer": {"type": "SGD", "params": {@"eps": 0.9}})", "optimizer.params.eps",
       "a parameter of SGD", "Adam or AdamW", "remove"},
      {R"("optimizer": {"type": "SGD", "params": {"nesterov": @true}})", "optimizer.params.nesterov", "false",
       "true", "momentum above 0"},
      {R"("optimizer": {"type": "AdamW", "params": {"torch_adam": true, "bias_correction": @false}})",
       "optimizer.params.bias_correction", "true", "false", "remove one"},
      {R"("optimizer": {"type": "AdamW", "params": {@"max_grad_norm": 1}})", "optimizer.params.max_grad_norm",
       "present name", "max_grad_norm", "gradient_clipping"},
      {R"("optimizer": {"type": "AdamW", @"eps": 1})", "optimizer.eps", "known key", "\"eps\"",
       "optimizer.params.eps"},
      {R"("scheduler": {"type": @"warmuplr"})", "scheduler.type", "WarmupLR", "warmuplr",
       "did you mean \"WarmupLR\"?"},
      {R"("scheduler": {"type": @"StepLR"})", "scheduler.type", "WarmupLR", "does not support",
       "InitializeOptions::schedule"},
      {R"("scheduler": {"type": @"CosineAnnealingLR"})", "scheduler.type", "WarmupCosineLR",
       "does not support", "WarmupCosineLR for a cosine"},
      {R"("scheduler": {"type": "WarmupCosineLR", "params": {"warmup_num_steps": @-1, "total_num_steps": 9}})",
       "scheduler.params.warmup_num_steps", "at least 0", "-1", "with the same effect as 2"},
      {R"("scheduler": {"type": "WarmupCosineLR", "params": @{}})", "scheduler.params.total_num_steps",
       "total_num_steps for WarmupCosineLR", "nothing", "write"},
      {R"("scheduler": {"type": "OneCycle", "params": @{"cycle_min_lr": 0.1}})",
       "scheduler.params.cycle_max_lr", "cycle_max_lr for OneCycle", "nothing", "write"},
      {R"("scheduler": {"type": "OneCycle", "params": @{"cycle_max_lr": 0.1}})",
       "scheduler.params.cycle_min_lr", "cycle_min_lr for OneCycle", "nothing", "write"},
      {R"("scheduler": {"type": "OneCycle", "params": {"cycle_min_lr": 0.1, "cycle_max_lr": 0.2, )"
       R"("cycle_first_step_size": @0}})",
       "scheduler.params.cycle_first_step_size", "an integer of at least 1", "0", "2000"},
      {R"("scheduler": {"type": "OneCycle", "params": {"cycle_min_lr": @[], "cycle_max_lr": 0.2}})",
       "scheduler.params.cycle_min_lr", "a number of at least 0, or an array of such numbers", "an array",
       "one for each parameter group"},
      {R"("scheduler": {"type": "OneCycle", "params": {"cycle_min_lr": [0.1, @-1], "cycle_max_lr": 0.2}})",
       "scheduler.params.cycle_min_lr[1]", "a number of at least 0", "-1", "one for each parameter group"},
      {R"("scheduler": {"type": "OneCycle", "params": {"cycle_min_lr": 0.1, "cycle_max_lr": 0.2, )"
       R"("cycle_max_mom": @1}})",
       "scheduler.params.cycle_max_mom", "less than 1", "1", "0.9"},
      {R"("scheduler": {"type": "LRRangeTest", "params": {"lr_range_test_step_size": @0}})",
       "scheduler.params.lr_range_test_step_size", "an integer of at least 1", "0", "2000"},
      {R"("scheduler": {"type": "LRRangeTest", "params": {@"bogus": 1}})", "scheduler.params.bogus",
       "known key", "bogus", "remove"},
      {R"("scheduler": {"type": "LRRangeTest", "params": {@"cycle_min_lr": 1}})",
       "scheduler.params.cycle_min_lr", "a parameter of LRRangeTest", "one of OneCycle", "remove"},
      {R"("scheduler": @{"params": {}})", "scheduler.type", "WarmupLR", "nothing", "write"},
      {R"("scheduler": @{"type": "WarmupDecayLR"})", "scheduler.params.total_num_steps", "total_num_steps",
       "nothing", "write"},
      {R"("scheduler": {"type": "WarmupDecayLR", "params": @{}})", "scheduler.params.total_num_steps",
       "total_num_steps for WarmupDecayLR", "nothing", "write"},
      {R"("scheduler": {"type": "WarmupLR", "params": {@"total_num_steps": 9}})",
       "scheduler.params.total_num_steps", "a parameter of WarmupLR", "one of WarmupDecayLR", "remove"},
      {R"("scheduler": {"type": "WarmupLR", "params": {"warmup_num_steps": @-1}})",
       "scheduler.params.warmup_num_steps", "at least 0", "-1", "with the same effect as 2"},
      {R"("scheduler": {"type": "WarmupLR", "params": {"warmup_num_steps": @10.5}})",
       "scheduler.params.warmup_num_steps", "an integer", "10.5", "1000"},
      {R"("scheduler": {"type": "WarmupLR", "params": {"warmup_type": @"cubic"}})",
       "scheduler.params.warmup_type", "log or linear", "cubic", "write"},
      {R"("scheduler": {"type": "WarmupLR", "params": {"warmup_max_lr": @"1"}})",
       "scheduler.params.warmup_max_lr", "a number", "\"1\"", "without the quotes"},
      {R"("scheduler": {"type": "WarmupLR", "params": {"last_batch_iteration": @5}})",
       "scheduler.params.last_batch_iteration", "-1", "5", "leave the key out"},
      {R"("zero_optimization": @true)", "zero_optimization", "an object", "true", "{\"stage\": 1}"},
      {R"("zero_optimization": {"stage": @4})", "zero_optimization.stage", "an integer from 0 to 3", "4",
       "0, 1, 2 or 3"},
      {R"("zero_optimization": {"stage": @-1})", "zero_optimization.stage", "an integer from 0 to 3", "-1",
       "0, 1, 2 or 3"},
      {R"("zero_optimization": {"stage": @true})", "zero_optimization.stage", "an integer", "true",
       "0, 1, 2 or 3"},
      {R"("zero_optimization": {"reduce_bucket_size": @0})", "zero_optimization.reduce_bucket_size",
       "at least 1", "0", "5e8"},
      {R"("zero_optimization": {"allgather_bucket_size": @0.5})", "zero_optimization.allgather_bucket_size",
       "an integer", "0.5", "5e8"},
      {R"("zero_optimization": {"reduce_bucket_size": @"auto"})", "zero_optimization.reduce_bucket_size",
       "an integer", "\"auto\"",
       "options.hidden_size or options.arguments[\"zero_optimization.reduce_bucket_size\"]"},
      {R"("zero_optimization": {"overlap_comm": @"yes"})", "zero_optimization.overlap_comm", "true or false",
       "\"yes\"", "write"},
      {R"("zero_optimization": {"reduce_scatter": @"no"})", "zero_optimization.reduce_scatter",
       "true or false", "\"no\"", "write"},
  });
}

TEST_CASE("values that are understood although written differently get a warning") {
  const auto note_of = [](const Config& config) {
    REQUIRE(told(config).size() == 1);
    return told(config)[0];
  };
  Config config = parse(R"("steps_per_print": "8")");
  CHECK(config.steps_per_print == 8);
  CHECK(note_of(config) ==
        "conf:2:20: warning: steps_per_print: \"8\" is taken as 8: write it without the quotes");
  config = parse(R"("wall_clock_breakdown": "true")");
  CHECK(config.wall_clock_breakdown);
  CHECK_THAT(note_of(config), Catch::Contains("warning: wall_clock_breakdown: \"true\" is taken as true"));
  for (const auto& [number, word] : {std::pair("1", "true"), std::pair("0.0", "false")}) {
    config = parse("\"prescale_gradients\": " + std::string(number));
    CHECK(config.prescale_gradients == (std::string(word) == "true"));
    CHECK_THAT(note_of(config), Catch::Contains("warning: prescale_gradients: " + std::string(number) +
                                                " is taken as " + word + ": write " + word));
  }
  config = parse(R"("gradient_clipping": true)");
  CHECK(config.gradient_clipping == 1.0);
  CHECK_THAT(note_of(config),
             Catch::Contains("warning: gradient_clipping: true is taken as 1: write the number"));
  config = parse(R"("zero_optimization": {"reduce_bucket_size": 15099494.4})");
  CHECK(config.zero.reduce_bucket_size == 15'099'494);
  CHECK_THAT(
      note_of(config),
      Catch::Contains("note: zero_optimization.reduce_bucket_size: 15099494.4 is rounded down to 15099494"));
  config = parse(R"("zero_optimization": {"stage": 2.0, "reduce_bucket_size": 5e8})");
  CHECK(config.zero.stage == 2);
  CHECK(told(config).empty());
}

TEST_CASE("all mistakes are reported together, in the order of the file") {
  const auto found = refusals(
      "{\"optimizer\": {\"type\": \"Adam\", \"params\":\n{\"lr\": \"auto\",\n\"lrr\": 1}},\n \"stage\": 2,\n "
      "\"gradient_clipping\": -1,\n \"train_batch_size\": 0, \"aoi\": {}}");
  std::vector<std::string> places;
  for (const Refusal& refusal : found) places.push_back(refusal.place());
  CHECK(places == std::vector<std::string>{"2:8 optimizer.params.lr", "3:1 optimizer.params.lrr", "4:2 stage",
                                           "5:23 gradient_clipping", "6:22 train_batch_size", "6:25 aoi"});
}

TEST_CASE("text that a message quotes from the file is short and has no control characters") {
  const auto found = refusals(with("\"" + std::string(40, 'k') + "\\u001b[31m" + std::string(100, 'l') +
                                   "\": 1, \"gradient_clipping\": \"" + std::string(1, 'x') +
                                   std::string(5000, 'y') + "\""));
  REQUIRE(found.size() == 2);
  CHECK_THAT(found[0].path, Catch::Contains("k?[31ml"));
  CHECK(found[0].path.size() < 80);
  CHECK(found[0].found.size() < 80);
  CHECK(found[1].found.size() < 80);
}

TEST_CASE("numbers switch features as true and false do, and other numbers than 0 and 1 are refused") {
  CHECK(parse(R"("bf16": {"enabled": 1})").precision.training == Dtype::bf16);
  CHECK(parse(R"("fp16": {"enabled": 0})").precision.training == Dtype::fp32);
  parse(R"("compression_training": {"sparse_pruning": {"shared_parameters": {"enabled": 0}}})");
  parse(R"("fp32_allreduce": 0)");
  check_refused(
      {{R"("prescale_gradients": @2)", "prescale_gradients", "true or false", "2", "write true or false"},
       {R"("prescale_gradients": @0.5)", "prescale_gradients", "true or false", "0.5", "write true or false"},
       {R"("prescale_gradients": @"1")", "prescale_gradients", "true or false", "\"1\"",
        "write true or false"}});
}
