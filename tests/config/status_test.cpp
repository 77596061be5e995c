// Tests the messages about keys that ZeroRun refuses, ignores, or accepts without effect. `zerorun config
// check` must report the errors of a run.
#include <algorithm>
#include <catch2/catch.hpp>
#include <string>
#include <vector>

#include "config/check.h"
#include "tests/config/refusal.h"

using namespace zerorun;
using namespace zerorun::config;
using namespace zerorun::test;

namespace {

std::vector<std::string> told(const std::string& settings) {
  return test::told(parse_config(with(settings), "conf", 1));
}

std::string zero(const std::string& keys) {
  return "\"zero_optimization\": {" + keys + "}";
}

constexpr const char* in_memory = "everything stays in the memory of the device that computes";

}  // namespace

TEST_CASE("zero_optimization may be false, which is stage 0") {
  check_warning(R"("zero_optimization": false)",
                R"(zero_optimization: false is taken as {"stage": 0}: write that, or leave the key out)");
  CHECK(parse_config(with(R"("zero_optimization": false)"), "conf", 1).zero.stage == 0);
  CHECK(!check_config(with(R"("zero_optimization": false)"), "conf").refused());
  CHECK(refusals(with(R"("zero_optimization": true)")).size() == 1);
}

TEST_CASE("an offload section without a device has no effect") {
  for (const char* section : {"offload_param", "offload_optimizer"}) {
    const std::string begin = "\"stage\": 3, \"" + std::string(section) + "\": {";
    CHECK(told(zero(begin + "\"device\": \"none\"}")).empty());
    CHECK(told(zero(begin + "\"device\": null, \"pin_memory\": false, \"buffer_count\": 7}")).empty());
    CHECK(told(zero(begin + "}")).empty());
    check_warning(zero(begin + "\"pin_memory\": false}"),
                  "zero_optimization." + std::string(section) +
                      ": is off: \"device\" is left out, and \"none\" by default");
  }
}

TEST_CASE("the config decides where optimizer states and parameters are stored") {
  CHECK(told(zero(R"("stage": 3, "offload_param": {"device": "cpu"})")).empty());
  CHECK(told(zero(R"("stage": 1, "offload_optimizer": {"device": "cpu"})")).empty());
  const Config config = parse_config(
      with(
          zero(
              R"("stage": 3, "sub_group_size": 1000, "offload_optimizer": {"device": "nvme", "nvme_path": "/disk",
          "buffer_count": 7}, "offload_param": {"device": "nvme", "nvme_path": "/other", "buffer_count": 9,
          "max_in_cpu": 1e6})") +
          R"(, "aio": {"block_size": 8192, "queue_depth": 3, "intra_op_parallelism": 2})"),
      "conf", 1);
  CHECK(config.warnings.empty());
  const OffloadOptimizerConfig& optimizer = config.zero.offload_optimizer;
  CHECK(optimizer.device == OffloadDevice::nvme);
  CHECK(optimizer.nvme_path == "/disk");
  CHECK(optimizer.buffer_count == 7);
  CHECK(optimizer.sub_group_size == 1000);
  const OffloadParamConfig& param = config.zero.offload_param;
  CHECK(param.device == OffloadDevice::nvme);
  CHECK(param.nvme_path == "/other");
  CHECK(param.buffer_count == 9);
  CHECK(param.max_in_cpu == 1'000'000);
  CHECK(config.zero.aio.block_size == 8192);
  CHECK(config.zero.aio.queue_depth == 3);
  CHECK(config.zero.aio.threads == 2);
  for (const std::string device : {"cpu", "nvme"}) {
    check_warning(zero(R"("offload_optimizer": {"nvme_path": "/disk", "device": ")" + device + "\"}"),
                  "zero_optimization.offload_optimizer.device: \"" + device +
                      "\" has no effect: optimizer states are partitioned from stage 1 on");
  }
}

TEST_CASE("cpu_offload is an old form of device: false means none, true means cpu") {
  check_warning(zero(R"("cpu_offload": false)"),
                R"(zero_optimization.cpu_offload: old form of "offload_optimizer": {"device": "none"})");
  check_warning(zero(R"("stage": 3, "cpu_offload_params": true)"),
                R"(zero_optimization.cpu_offload_params: old form of "offload_param": {"device": "cpu"})");
}

TEST_CASE("parameters are offloaded at stage 3 only") {
  for (const std::string stage : {"", "\"stage\": 0, ", "\"stage\": 2, "}) {
    check_warning(zero(stage + R"("offload_param": {"device": "cpu"})"),
                  "zero_optimization.offload_param.device: \"cpu\" has no effect: parameters are partitioned "
                  "only at stage 3");
  }
  CHECK(told(zero(R"("stage": 2, "offload_param": {"device": "none"})")).empty());
}

TEST_CASE("keys and sections that a run refuses are errors in a check") {
  struct Row {
    const char* settings;
    const char* path;
  };
  for (const auto& [settings, path] : std::vector<Row>{
           {R"("zero_optimization": {"stage": 2, "zenflow": {"topk_ratio": 0.1}})",
            "zero_optimization.zenflow"},
           {R"("sparse_attention": {"mode": "fixed"})", "sparse_attention"},
           {R"("compression_training": {"weight_quantization": {"shared_parameters": {"enabled": true}}})",
            "compression_training"},
           {R"("weight_quantization": {"post_init_quant": {}})", "weight_quantization"},
           {R"("data_efficiency": {"enabled": true, "data_routing": {"enabled": true,
               "random_ltd": {"enabled": true}}})",
            "data_efficiency.data_routing.random_ltd"},
           {R"("tensor_parallel": {"partition_config": {"layers": []}})", "tensor_parallel.partition_config"},
           {R"("optimizer": {"type": "OneBitAdam"})", "optimizer.type"},
       }) {
    INFO(settings);
    const auto found = refusals(with(settings));
    REQUIRE(found.size() == 1);
    CHECK(found[0].path == path);
    int errors = 0;
    for (const Diagnostic& diagnostic : check_config(with(settings), "conf").diagnostics.messages()) {
      if (diagnostic.severity != Severity::error) continue;
      ++errors;
      CHECK(diagnostic.mistake.path == path);
      CHECK(diagnostic.mistake.expected == found[0].expected);
      CHECK(diagnostic.mistake.remedy == found[0].remedy);
    }
    CHECK(errors == 1);
  }
}

TEST_CASE(
    "a section that is never supported is silent while it is off, and gets one message while it is on") {
  struct Row {
    const char* name;
    Severity severity;  // while it is on
  };
  for (const auto& [name, severity] : std::vector<Row>{{"amp", Severity::error},
                                                       {"nebula", Severity::warning},
                                                       {"curriculum_learning", Severity::error},
                                                       {"progressive_layer_drop", Severity::error},
                                                       {"eigenvalue", Severity::warning},
                                                       {"elasticity", Severity::error},
                                                       {"autotuning", Severity::warning},
                                                       {"hybrid_engine", Severity::error},
                                                       {"data_efficiency", Severity::warning}}) {
    const auto messages = [&](const std::string& members) {
      return check_config(with("\"" + std::string(name) + "\": {" + members + "}"), "conf")
          .diagnostics.messages();
    };
    INFO(name);
    for (const char* off :
         {"", "\"enabled\": false", "\"enabled\": \"false\", \"no_such_key\": [1]", "\"enabled\": \"auto\"",
          "\"enabled\": null, \"x\": {\"enabled\": true}", "\"opt_level\": 7"}) {
      INFO(off);
      CHECK(messages(off).empty());
    }
    for (const char* on :
         {"\"enabled\": true", "\"enabled\": \"true\", \"no_such_key\": [1]", "\"enabled\": 1"}) {
      INFO(on);
      const auto found = messages(on);
      REQUIRE(found.size() == 1);
      CHECK(found[0].severity == severity);
      CHECK(found[0].mistake.path == name);
    }
    CHECK(refusals(with("\"" + std::string(name) + "\": true")).size() == 1);
  }
  for (const char* present : {R"("sparse_attention": {})", R"("zero_optimization": {"zenflow": {}})"}) {
    CHECK(refusals(with(present)).size() == 1);  // they have no switch
  }
}

TEST_CASE("in data_efficiency only features that are switched on by all switches around them are refused") {
  const auto errors = [](const char* outer, const char* sampling, const char* curriculum) {
    return refusals(with(
        R"("data_efficiency": {"enabled": )" + std::string(outer) + R"(, "data_sampling": {"enabled": )" +
        sampling + R"(, "num_workers": "many", "curriculum_learning": {"enabled": )" + curriculum + "}}}"));
  };
  const auto found = errors("true", "true", "true");
  REQUIRE(found.size() == 1);
  CHECK(found[0].path == "data_efficiency.data_sampling.curriculum_learning");
  CHECK(found[0].remedy == "the program selects its training data itself: remove it");
  CHECK(errors("false", "true", "true").empty());
  CHECK(errors("true", "false", "true").empty());
  CHECK(errors("true", "true", "false").empty());
}

TEST_CASE("leftovers are warnings, and keys that would change something stay errors") {
  check_warning(
      R"("bf16": {"enabled": true, "loss_scale": 0})",
      "bf16.loss_scale: has no effect: bf16 has the range of fp32 and needs no loss scale; remove it");
  check_warning(R"("disable_fused_adam": true)",
                "disable_fused_adam: has no effect: every optimizer of ZeroRun is one fused pass; remove it");
  for (const char* settings :
       {R"("bf16": {"enabled": true, "initial_scale_power": 16, "min_loss_scale": "x"})",
        R"("zero3_init_flag": true, "zero3_save_16bit_model": false)",
        R"("checkpointing": {"enabled": true, "every_epoch": 1}, "fp32_allreduce": false)",
        R"("bfloat16": {"enabled": true, "hysteresis": 2})"}) {
    INFO(settings);
    CHECK(refusals(with(settings)).empty());
    const CheckedConfig checked = check_config(with(settings), "conf");
    CHECK(!checked.refused());
    CHECK(checked.diagnostics.messages().size() >= 2);
  }
  for (const char* settings :
       {R"("fp32_allreduce": true)", R"("loss_scale": 0)",
        R"("fp16": {"enabled": true, "disable_fused_adam": true})",
        R"("bf16": {"enabled": true, "auto_cast": true})", R"("max_grad_norm": 1)",
        R"("offload_optimizer": {})", R"("zero_optimization": {"zero3_init_flag": true})",
        R"("compile": {"backend": "inductor"})", R"("pipe-parallel-size": 1)"}) {
    INFO(settings);
    CHECK(refusals(with(settings)).size() == 1);
  }
}

TEST_CASE("a warm-up of 0 steps is the shortest one, with a warning") {
  const std::string told =
      "scheduler.params.warmup_num_steps: 0 has the same effect as 2, the shortest warm-up; write 1 or 2";
  check_warning(R"("scheduler": {"type": "WarmupLR", "params": {"warmup_num_steps": 0}})", told);
  LoadOptions options{.arguments = {{"scheduler.params.warmup_num_steps", int64_t{0}}}};
  const Config config = parse_config(with(R"("scheduler": {"type": "WarmupDecayLR",
              "params": {"warmup_num_steps": "auto", "total_num_steps": 9}})"),
                                     "conf", options);
  CHECK(std::get<WarmupDecayLr>(*config.scheduler).warmup.num_steps == 1);
  REQUIRE(config.warnings.size() == 1);
  CHECK_THAT(config.warnings[0], Catch::EndsWith(told));
}

TEST_CASE("a feature in which nothing is switched on is not refused") {
  for (const char* settings :
       {R"("compression_training": {})",
        R"("compression_training": {"sparse_pruning": {"shared_parameters": {"method": "l1"},
            "different_groups": {}}, "weight_quantization": {"shared_parameters": {"enabled": "false"}}})",
        R"("quantize_training": {"quantize_bits": {"start_bits": 16}})", R"("quantize_training": null)",
        R"("expert_parallel": {"enabled": false, "autoep_size": 4})", R"("weight_quantization": {})",
        R"("weight_quantization": {"enabled": false, "post_init_quant": {}})",
        R"("zero_optimization": {"zenflow": null})", R"("tensor_parallel": {"autotp_size": 0})",
        R"("tensor_parallel": {"autotp_size": 1})",
        R"("hybrid_engine": {"enabled": false, "max_out_tokens": 1})"}) {
    INFO(settings);
    CHECK(told(settings).empty());
    CHECK(check_config(with(settings), "conf").diagnostics.messages().empty());
  }
  // The section is on, but no feature in it is.
  check_warning(R"("data_efficiency": {"enabled": true, "data_sampling": {"enabled": true,
                   "curriculum_learning": {"enabled": false}}, "data_routing": {"enabled": false}})",
                "data_efficiency: not supported: the program selects its training data itself");
}

TEST_CASE("a feature that is not supported is a warning, and a setting that has no effect is a note") {
  check_note(R"("checkpoint": {"writer": {"decoupled": true}})",
             "checkpoint.writer: has no effect: every rank already writes in the background, in blocks of 1 "
             "MiB that bypass the page cache");
  check_warning(R"("compile": {"deepcompile": true})",
                "compile: not supported: ZeroRun does not compile; LibTorch's operators run unchanged");
  check_warning(R"("log_level": "info")",
                "log_level: \"info\" is not supported: the program decides what it logs");
  check_note(R"("aio": {"single_submit": true})",
             "aio.single_submit: true has no effect: each request is submitted as soon as it is ready");
  CHECK(told(R"("aio": {"queue_depth": 8}, "checkpoint": {"tag_validation": "warn"}, "timers": {},
                 "tensorboard": {"enabled": false, "job_name": "x"}, "dump_state": false)")
            .empty());
}

TEST_CASE("messages about features that DeepSpeed removed after 0.19.6 say so") {
  // The features are those of DeepSpeed's issue 8489 whose removal has been merged.
  for (const char* settings :
       {R"("elasticity": {"enabled": true})",
        R"("compression_training": {"layer_reduction": {"enabled": true}})", R"("nebula": {"enabled": true})",
        R"("amp": {"enabled": true})", R"("sparse_gradients": true)",
        R"("sparse_attention": {"mode": "fixed"})", R"("progressive_layer_drop": {"enabled": true})",
        R"("curriculum_learning": {"enabled": true})", R"("quantize_training": {"enabled": true})",
        R"("eigenvalue": {"enabled": true})",
        R"("optimizer": {"type": "OneBitAdam", "params": {"freeze_step": 1}})",
        R"("zero_optimization": {"mics_shard_size": 2})",
        R"("zero_optimization": {"mics_hierarchical_params_gather": true})",
        R"("zero_optimization": {"zeropp_loco_param": {"err_beta": 0.8}})"}) {
    INFO(settings);
    const auto messages = check_config(with(settings), "conf").diagnostics.messages();
    CHECK(std::ranges::any_of(messages, [](const Diagnostic& message) {
      return message.text.find("(removed from DeepSpeed after 0.19.6)") != std::string::npos;
    }));
  }
}

TEST_CASE("a refused key in a section that the program may switch off is a warning in a check") {
  const std::string settings = R"("fp16": {"enabled": "auto", "fp16_master_weights_and_grads": true})";
  const CheckedConfig checked = check_config(with(settings), "conf");
  CHECK(!checked.refused());
  CHECK(checked.diagnostics.any(Severity::warning));
  LoadOptions options{.arguments = {{"fp16.enabled", true}}};
  CHECK_THROWS_WITH(parse_config(with(settings), "conf", options),
                    Catch::Contains("fp16.fp16_master_weights_and_grads: expected false"));
}

TEST_CASE("a warning says that a section without its switch is off") {
  check_warning(R"("fp16": {"loss_scale": 0})",
                R"(fp16: is off: "enabled" is left out, and false by default)");
  check_warning(R"("wandb": {"project": "mine"})",
                R"(wandb: is off: "enabled" is left out, and false by default)");
  const auto old = told(R"("bfloat16": {"check_grad_overflow": true})");
  REQUIRE(old.size() == 3);  // two of the messages are about old names
  CHECK_THAT(old[1], Catch::EndsWith(R"(bfloat16: is off: "enabled" is left out, and false by default)"));
  CHECK(told(R"("fp16": {}, "bf16": {"_why": "later"})").empty());
}

TEST_CASE("a note names a learning rate that the schedule overrides") {
  const auto settings = [](const std::string& schedule) {
    return R"("optimizer": {"type": "Adam", "params": {"lr": 0.25}}, "scheduler": {"type": )" + schedule +
           "}";
  };
  struct Row {
    const char* schedule;
    const char* own;
  };
  for (const auto& [schedule, own] : std::vector<Row>{
           {R"("WarmupLR", "params": {"warmup_max_lr": 0.5})",
            "WarmupLR is set by warmup_max_lr, which is 0.5"},
           {R"("WarmupDecayLR", "params": {"total_num_steps": 9, "warmup_num_steps": 2})",
            "WarmupDecayLR is set by warmup_max_lr, which is 0.001"},
           {R"("OneCycle", "params": {"cycle_min_lr": 0.1, "cycle_max_lr": [0.2, 0.25]})",
            "OneCycle is set by cycle_max_lr, which is [0.2, 0.25]"},
           {R"("LRRangeTest")", "LRRangeTest is set by lr_range_test_min_lr, which is 0.001"},
       }) {
    check_warning(settings(schedule),
                  "optimizer.params.lr: 0.25 has no effect: the learning rate of " + std::string(own));
  }
  for (const char* schedule :
       {R"("WarmupLR")", R"("WarmupLR", "params": {"warmup_max_lr": 0.25})",
        R"("WarmupCosineLR", "params": {"total_num_steps": 9, "warmup_num_steps": 2})"}) {
    INFO(schedule);
    CHECK(told(settings(schedule)).empty());
  }
}

TEST_CASE("keys that DeepSpeed refuses in fp16 are refused, and only warned of with compat") {
  for (const std::string key : {"opt_level", "fp16_opt_level"}) {
    const std::string text = with("\"fp16\": {\"enabled\": true, \"" + key + "\": \"O2\"}");
    const auto found = refusals(text);
    REQUIRE(found.size() == 1);
    CHECK(found[0].path == "fp16." + key);
    CHECK_THAT(found[0].remedy, Catch::Contains("DeepSpeed refuses it"));
    CHECK(check_config(text, "conf").refused());
    CHECK(!check_config(text, "conf", {.compat = true}).refused());
  }
}
