// Everything but tensors in DeepSpeed's files: counters, config, learning rates, loss scale, client state.
// Pure; any thread.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "checkpoint/manifest.h"
#include "convert/pickle_fields.h"

namespace zerorun {

struct DeepSpeedFacts {
  std::string version;  // of DeepSpeed
  int world_size = 1;
  std::string precision;              // "fp32", "fp16", "bf16"; empty without ds_config
  std::string optimizer;              // as ZeroRun names it: "AdamW"
  int64_t generation = 0;             // optimizer steps that were applied
  RestartValues numbers;              // with the names of engine/restart_items.h
  std::string client_state;           // JSON
  std::vector<std::string> left_out;  // what ZeroRun does not import, one phrase each
};

/// `model`: the contents of a file of model states. Throws UserError naming the key.
DeepSpeedFacts read_deepspeed_facts(const PickledField& model);

/// Adds each group's learning rate and betas. `groups`: an optimizer's param_groups. Returns their count.
int64_t add_groups(const PickledField& groups, RestartValues& numbers);

/// Adds the state of an fp16 loss scaler, fixed or dynamic.
void add_loss_scale(const PickledField& loss_scaler, RestartValues& numbers);

}  // namespace zerorun
