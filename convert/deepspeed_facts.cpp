#include "convert/deepspeed_facts.h"

#include <algorithm>
#include <cctype>
#include <nlohmann/json.hpp>
#include <set>

#include "base/error.h"

namespace zerorun::convert {
namespace {

// Keys that DeepSpeed itself writes to the model's file. All other keys are the program's client state.
const std::set<std::string>& own_keys() {
  static const std::set<std::string> keys = {"module",
                                             "buffer_names",
                                             "optimizer",
                                             "param_shapes",
                                             "frozen_param_shapes",
                                             "frozen_param_fragments",
                                             "shared_params",
                                             "lr_scheduler",
                                             "data_sampler",
                                             "random_ltd",
                                             "sparse_tensor_module_names",
                                             "skipped_steps",
                                             "global_steps",
                                             "global_samples",
                                             "micro_steps",
                                             "dp_world_size",
                                             "mp_world_size",
                                             "checkpoint_parallel_dimensions",
                                             "num_experts",
                                             "ds_config",
                                             "ds_version",
                                             "universal_checkpoint_info"};
  return keys;
}

void read_counters(const PickledField& model, DeepSpeedFacts& facts) {
  const int64_t global = model.need("global_steps").integer();
  const auto skipped_field = model.find("skipped_steps");
  const int64_t skipped = skipped_field ? skipped_field->integer() : 0;
  if (skipped < 0 || skipped > global)
    throw UserError(model.place + ": skipped_steps " + std::to_string(skipped) + " of global_steps " +
                    std::to_string(global));
  facts.generation = global - skipped;
  facts.numbers["steps.global"] = global;
  facts.numbers["steps.skipped"] = skipped;
}

void read_ranks(const PickledField& model, DeepSpeedFacts& facts) {
  constexpr int64_t kMostRanks = 65'536;
  if (const auto ranks = model.find("dp_world_size")) {
    if (ranks->integer() < 1 || ranks->integer() > kMostRanks)
      throw UserError(ranks->place + ": " + std::to_string(ranks->integer()) +
                      ", expected a number of ranks");
    facts.world_size = static_cast<int>(ranks->integer());
  }
  const auto tensor_parallel = model.find("mp_world_size");
  if (tensor_parallel && tensor_parallel->integer() != 1)
    throw UserError(tensor_parallel->place + ": " + std::to_string(tensor_parallel->integer()) +
                    ", expected 1: tensor parallelism is not supported");
}

std::string precision_of(const std::optional<PickledField>& config) {
  if (!config) return "";
  auto is_enabled = [&](const char* key) {
    const auto section = config->find(key);
    const auto enabled = section ? section->find("enabled") : std::nullopt;
    return enabled && enabled->integer() != 0;
  };
  if (is_enabled("bf16") || is_enabled("bfloat16")) return "bf16";
  return is_enabled("fp16") ? "fp16" : "fp32";
}

// Names the optimizer by the rule of config/optimizer.cpp: the type "Adam" means AdamW unless adam_w_mode is
// false.
void read_optimizer(const std::optional<PickledField>& config, DeepSpeedFacts& facts) {
  const auto optimizer = config ? config->find("optimizer") : std::nullopt;
  const auto type = optimizer ? optimizer->find("type") : std::nullopt;
  if (!type) {
    facts.optimizer = "AdamW";
    facts.left_out.push_back(
        "the type of the optimizer, which the program made itself and ds_config does not name: AdamW is "
        "assumed");
    return;
  }
  std::string lower = facts.optimizer = type->text();
  std::ranges::transform(lower, lower.begin(), [](unsigned char c) { return std::tolower(c); });
  const auto params = optimizer->find("params");
  const auto decoupled = params ? params->find("adam_w_mode") : std::nullopt;
  if (lower == "adamw" || (lower == "adam" && (!decoupled || decoupled->integer() != 0)))
    facts.optimizer = "AdamW";
}

// ZeroRun computes the schedule from the number of applied steps. So DeepSpeed's position in the schedule is
// reported as left out only if it differs from that number.
void note_what_is_left_out(const PickledField& model, DeepSpeedFacts& facts) {
  if (const auto scheduler = model.find("lr_scheduler")) {
    const bool is_own = scheduler->value.is(PickleKind::dict) && scheduler->value.size() == 2 &&
                        scheduler->find("last_batch_iteration");
    if (!is_own) {
      facts.left_out.push_back("the state of the program's own learning rate scheduler (lr_scheduler)");
    } else if (const int64_t last = scheduler->need("last_batch_iteration").integer();
               last != facts.generation - 1) {
      facts.left_out.push_back("the scheduler's position (last_batch_iteration " + std::to_string(last) +
                               "): ZeroRun's schedule continues after " + std::to_string(facts.generation) +
                               " optimizer steps");
    }
  }
  if (model.find("data_sampler"))
    facts.left_out.push_back("the state of DeepSpeed's data sampler (data_sampler)");
  if (model.find("random_ltd")) facts.left_out.push_back("the state of random layer-token drop (random_ltd)");
}

void read_client_state(const PickledField& model, DeepSpeedFacts& facts) {
  nlohmann::json client = nlohmann::json::object();
  for (const auto& [key, field] : model.entries()) {
    if (own_keys().contains(key)) continue;
    try {
      bool has_storages = false;
      client[key] = to_json(field, &has_storages);
      if (has_storages)
        facts.left_out.push_back("the values of tensors in the client state (" + key +
                                 "): only their shapes and dtypes are");
    } catch (const UserError& error) {
      facts.left_out.push_back(std::string("a part of the client state: ") + error.what());
    }
  }
  facts.client_state = client.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
}

}  // namespace

DeepSpeedFacts read_deepspeed_facts(const PickledField& model) {
  DeepSpeedFacts facts;
  if (const auto version = model.find("ds_version")) facts.version = version->text();
  read_counters(model, facts);
  read_ranks(model, facts);
  auto config = model.find("ds_config");
  if (config && !config->value.is(PickleKind::dict)) config.reset();  // ds_config may be just a file name
  facts.precision = precision_of(config);
  read_optimizer(config, facts);
  note_what_is_left_out(model, facts);
  read_client_state(model, facts);
  return facts;
}

int64_t add_groups(const PickledField& groups, checkpoint::RestartValues& numbers) {
  int64_t index = 0;
  for (const PickledField& group : groups.items()) {
    const std::string prefix = "group " + std::to_string(index++) + ".";
    numbers[prefix + "lr"] = group.need("lr").real();
    const auto betas = group.find("betas");
    if (!betas) continue;
    numbers[prefix + "beta1"] = betas->item(0).real();
    numbers[prefix + "beta2"] = betas->item(1).real();
  }
  return index;
}

// https://github.com/deepspeedai/DeepSpeed/blob/v0.19.8/deepspeed/runtime/fp16/loss_scaler.py
void add_loss_scale(const PickledField& loss_scaler, checkpoint::RestartValues& numbers) {
  const auto attributes = loss_scaler.value.state();
  if (!attributes) throw UserError(loss_scaler.place + ": expected a LossScaler with its attributes");
  const PickledField scaler{loss_scaler.place, *attributes};
  auto integer = [&](const char* key, int64_t otherwise) {
    const auto field = scaler.find(key);
    return field ? field->integer() : otherwise;
  };
  numbers["loss_scaler.scale"] = scaler.need("cur_scale").real();
  numbers["loss_scaler.updates"] = integer("cur_iter", 0);
  numbers["loss_scaler.last_overflow"] = integer("last_overflow_iter", -1);
  numbers["loss_scaler.hysteresis"] = integer("cur_hysteresis", 1);
}

}  // namespace zerorun::convert
