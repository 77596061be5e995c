// The part of Restore that refuses checkpoints which do not fit, before anything is read.
#include <algorithm>
#include <set>
#include <string>
#include <vector>

#include "base/error.h"
#include "engine/saving/checkpoint_contents.h"
#include "engine/saving/restore.h"

namespace zerorun {

void Restore::check() const {
  check_optimizer();
  check_model();
  check_groups();
  check_window();
  check_states();
}

void Restore::check_states() const {
  if (const std::vector<std::string> faults = saved_->faults(); !faults.empty())
    throw UserError("the checkpoint's manifest has not all of the model: " + faults.front() +
                    "; load another one");
  state_->store.for_each([&](int bucket, const StateTensor& kept) {
    for (const int index : state_->store.layout(bucket).parameters) {
      if (is_read(index, kept)) source_of(index, kept);
    }
  });
}

void Restore::check_optimizer() const {
  const std::string& saved = saved_->manifest().optimizer;
  if (options_.optimizer_states && saved != state_->optimizer_name) {
    throw UserError(
        "the checkpoint's optimizer is " + saved + ", and this engine's is " + state_->optimizer_name +
        ": use the same one, or load with RestoreOptions::optimizer_states = false and counters = false");
  }
  const int64_t steps = state_->optimizer->steps();
  if (!options_.optimizer_states && steps > 0) {
    throw UserError(
        "RestoreOptions::optimizer_states = false needs a new optimizer, but this engine's has taken " +
        std::to_string(steps) + " steps: load into an engine that has taken none");
  }
}

void Restore::check_model() const {
  const auto& saved = saved_->manifest().parameters;
  std::set<std::string> wanted;
  for (const NamedTensor& buffer : state_->unsaved)
    wanted.insert(buffer.name);  // older checkpoints have them
  std::string differences;
  for (const auto& [name, parameter] : saved_parameters(*state_)) {
    const auto there = names_.find(name);
    if (there == names_.end()) {
      if (options_.strict)
        differences += "\n  " + name + c10::str(" ", parameter.shape, " is not in the checkpoint");
      continue;
    }
    const auto found = saved.find(there->second);
    wanted.insert(found->first);
    if (found->second.shape != parameter.shape ||
        !(same_order(found->second, parameter) || is_dense(found->second))) {
      differences +=
          "\n  " + name +
          c10::str(" is ", parameter.shape, " with strides ", parameter.strides, " here, and ",
                   found->second.shape, " with strides ", found->second.strides, " in the checkpoint");
    } else if (has_window() && found->second.split != parameter.split) {
      differences += "\n  " + name + " is split " + describe(parameter.split) + " here, and split " +
                     describe(found->second.split) + " in the checkpoint";
    }
  }
  for (const auto& [name, parameter] : saved) {
    if (options_.strict && !wanted.contains(name)) {
      differences += "\n  " + name + c10::str(" ", parameter.shape, " is only in the checkpoint");
    }
  }
  if (differences.empty()) return;
  throw UserError("the checkpoint is from another model:" + differences +
                  "\nbuild the model as it was, or load with RestoreOptions::strict = false, which ignores "
                  "entries that only one side has (shapes must agree)");
}

void Restore::check_groups() const {
  if (!options_.counters) return;
  for (const auto& [name, parameter] : saved_parameters(*state_)) {
    const auto there = names_.find(name);
    if (there == names_.end() || parameter.group < 0) continue;
    const int64_t saved = saved_->manifest().parameters.at(there->second).group;
    if (saved < 0 || saved == parameter.group) continue;
    throw UserError(c10::str("the checkpoint was written with other parameter groups: ", name,
                             " is in group ", saved, " there, and in group ", parameter.group,
                             " here: give the same groups in the same order, or load with "
                             "RestoreOptions::counters = false"));
  }
}

void Restore::check_window() const {
  if (!has_window()) return;
  if (state_->mesh.has_replicas()) {
    throw UserError(
        "the checkpoint was saved between the micro-steps of an optimizer step, and the mesh has "
        "replicas (zerorun.mesh.replicate), whose gradients are summed only at its end: load a "
        "checkpoint that was saved after a step, or leave replicate out");
  }
  const checkpoint::Manifest& manifest = saved_->manifest();
  const checkpoint::SavedWindow& saved = *manifest.window;
  const checkpoint::SavedWindow own = saved_window(*state_);
  std::string differences;
  auto compare = [&](const char* what, const auto& theirs, const auto& ours) {
    if (theirs != ours) differences += c10::str("\n  ", what, " ", theirs, " there, ", ours, " here");
  };
  compare("ranks:", manifest.world_size, state_->mesh.world().world_size());
  if (manifest.world_size == state_->mesh.world().world_size())
    compare("mesh:", describe(mesh_of(manifest)), describe(state_->mesh.sizes()));
  compare("gradient_accumulation_steps:", saved.accumulation_steps, own.accumulation_steps);
  compare("gradients summed over ranks with each micro-step (stages 2 and 3):", saved.is_summed,
          own.is_summed);
  compare("precision:", manifest.precision, std::string(name_of(state_->config.precision.training)));
  compare("dtype of gradients in collectives:", saved.communication, own.communication);
  compare("dtype of gradients:", saved.dtype, own.dtype);
  compare("factor of gradients:", saved.factor, own.factor);
  for (int index = 0; index < static_cast<int>(state_->buckets.trained().size()); ++index) {
    const std::string& name = state_->buckets.parameters()[index].name;
    const auto there = names_.find(name);
    if (there == names_.end()) continue;
    const std::vector<int> parts = saved_->parts_of(there->second, gradient_state());
    const int part = saved_part(*state_, index, StateKind::gradient);
    if (parts.empty() || std::ranges::find(parts, part) != parts.end()) continue;
    const bool whole_here = part == checkpoint::kWhole;
    differences +=
        "\n  gradients of " + name + ": " +
        (whole_here ? "of each tensor rank there, of all here" : "of all tensor ranks there, of each here");
  }
  if (state_->scaler && state_->scaler->is_fixed())  // else the checkpoint's is restored
    compare("loss scale (fp16.loss_scale):", saved.loss_scale, state_->loss_scale());
  if (differences.empty()) return;
  throw UserError(
      "the checkpoint was saved between the micro-steps of an optimizer step, and its gradients do not fit "
      "this training:" +
      differences + "\nload it with the same settings, or load one that was saved after an optimizer step");
}

}  // namespace zerorun
