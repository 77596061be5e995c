// The contents of DeepSpeed's files apart from tensors: counters, config, learning rates, loss scale, client
// state. Pure functions; any thread.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "checkpoint/manifest.h"
#include "convert/pickle_fields.h"

namespace zerorun::convert {

struct DeepSpeedFacts {
  std::string version;  // version of DeepSpeed
  int world_size = 1;
  std::string precision;              // "fp32", "fp16" or "bf16"; empty if there is no ds_config
  std::string optimizer;              // ZeroRun's name for it: "AdamW"
  int64_t generation = 0;             // number of applied optimizer steps
  checkpoint::RestartValues numbers;  // named as in engine/saving/restart_items.h
  std::string client_state;           // as JSON text
  std::vector<std::string> left_out;  // data that ZeroRun does not import, one phrase each
};

/// `model` is the contents of a file with model states. Throws UserError naming the key.
DeepSpeedFacts read_deepspeed_facts(const PickledField& model);

/// Adds the learning rate and betas of each group in `groups`, an optimizer's param_groups. Returns the
/// number of groups.
int64_t add_groups(const PickledField& groups, checkpoint::RestartValues& numbers);

/// Adds the state of an fp16 loss scaler, fixed or dynamic.
void add_loss_scale(const PickledField& loss_scaler, checkpoint::RestartValues& numbers);

}  // namespace zerorun::convert
