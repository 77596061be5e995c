// The part of EngineState that refuses calls of the program, with the reason and the remedy.
#include <torch/csrc/autograd/graph_task.h>

#include <string>
#include <utility>

#include "base/error.h"
#include "engine/engine_state.h"

namespace zerorun {

void check_outside_backward(const std::string& call) {
  if (torch::autograd::get_current_graph_task_id() < 0) return;
  throw UserError(call +
                  "() inside a backward pass (in a hook, or in the backward of a function): call it "
                  "after the backward");
}

void EngineState::check_has_parameters(const std::string& call) const {
  if (lost_parameter < 0) return;
  throw UserError(call + "(): another engine, which was made later, has taken parameter " +
                  buckets.parameters()[lost_parameter].name +
                  " from this one, because a parameter has one engine at a time: use that engine and destroy "
                  "this one, or destroy this one before initialize() makes the other");
}

void EngineState::check_not_failed(const std::string& call) const {
  check_windows_work(call);
  if (progress.update_failed()) {
    throw UserError(
        call + "() after a step() that threw: some parameters are updated and others are not; end the run");
  }
}

void EngineState::check_before_backward(const std::string& call) const {
  check_trains(call);
  check_not_failed(call);
  check_states_are_here(call);
  if (!progress.is_declared_last() || !held.had_last_backward()) return;
  throw UserError(call +
                  "(): a second backward before step(), after set_gradient_accumulation_boundary(true) has "
                  "declared the previous one the last: call it with false until the last backward");
}

void EngineState::check_sets_group(int group, const std::string& call) {
  finish_open_step();
  if (schedule.is_given()) {
    throw UserError("engine." + call +
                    "() in a run with a schedule, which sets these values: remove the config's "
                    "\"scheduler\", or the schedule of the program");
  }
  check_group(group, call);
}

void EngineState::check_has_schedule(const std::string& call) const {
  check_trains("engine." + call);
  if (config.scheduler) return;
  throw UserError("engine." + call +
                  "() in a run without a schedule of the config: add a \"scheduler\" block, or leave the "
                  "call out");
}

void EngineState::check_group(int group, const std::string& call) const {
  if (group >= 0 && group < optimizer->groups()) return;
  throw UserError("engine." + call + "(): parameter group " + std::to_string(group) + ", expected 0 to " +
                  std::to_string(optimizer->groups() - 1));
}

void EngineState::check_states_are_here(const std::string& call) const {
  if (!states_on_host.away()) return;
  throw UserError(
      call + "(): the optimizer's states have been moved by offload_states(): call reload_states() first");
}

void EngineState::check_between_steps(const std::string& call) {
  check_outside_backward(call);
  check_has_parameters(call);
  check_windows_work(call);
  held.follow_failed_backward(call);
  held.follow_marks(call);
  check_no_step_is_open(call);
}

void EngineState::check_knows_parts(const std::string& call) const {
  const bool splits = mesh.sizes().tensor > 1;
  const bool is_known =
      stage ? !splits || has_tensor_plan : mesh.sizes().pipeline == 1 && splits && tensor_rule;
  if (!mesh.has_groups() || is_known) return;
  throw UserError(call + "() on a mesh of " + describe(mesh.sizes()) +
                  ": checkpoints and models of several data groups can be saved and loaded only if a tensor "
                  "plan says what tensor ranks have of each parameter (InitializeOptions::tensor_plan), and "
                  "of pipeline ranks only if the engine divides the layers (InitializeOptions::pipeline)");
}

void EngineState::check_no_step_is_open(const std::string& call) const {
  check_not_failed(call);
  if (!open_scopes.empty()) {
    throw UserError(call + "() inside a GatheredParameters scope: end the scope first");
  }
  check_in_place();
  if (held.backwards() > 0) {
    throw UserError(call + "() between backward() and step(): call it after step()");
  }
}

void EngineState::check_in_place() const {
  const auto& parameters = buckets.parameters();
  for (size_t index = 0; index < parameters.size(); ++index) {
    if (buckets.in_place(static_cast<int>(index))) continue;
    throw UserError(
        "parameter " + parameters[index].name +
        " has left its bucket since initialize() (moving or converting a module, setting a parameter's data "
        "and loading a whole module have this effect): do this before initialize(), or copy values in place "
        "with autograd off (torch::NoGradGuard; Python: torch.no_grad())");
  }
}

void EngineState::check_trains(const std::string& call) const {
  if (!computes_only) return;
  throw UserError(call +
                  "() of an engine without an optimizer, which only computes: to train, add an \"optimizer\" "
                  "block to the config or pass one to initialize()");
}

void EngineState::check_before_update(const std::string& call) const {
  check_trains(call);
  check_not_failed(call);
  check_states_are_here(call);
  if (progress.in_no_sync()) {
    throw UserError(call +
                    "() inside a no_sync() scope, where gradients are not reduced: end the scope before the "
                    "last backward()");
  }
  if (!open_scopes.empty()) {
    throw UserError(call + "() inside a GatheredParameters scope: end the scope first");
  }
  const auto& parameters = buckets.parameters();
  for (size_t index = 0; index < parameters.size(); ++index) {
    const bool trained = parameters[index].group != kFrozen;
    if (parameters[index].tensor.requires_grad() != trained) {
      throw UserError("parameter " + parameters[index].name +
                      (trained
                           ? " was frozen after initialize(): freeze parameters before, or give them a "
                             "learning rate of 0 in a parameter group of their own"
                           : " was unfrozen after initialize(): parameters to train require grad before"));
    }
  }
  for (const NamedParameter& parameter : buckets.trained()) {
    if (held.has_marks() || !parameter.tensor.grad().defined())
      continue;  // follow_marks() looks at marked ones
    throw UserError(call + "(): the program has set grad() of parameter " + parameter.name +
                    ", which has no effect on the engine: leave it empty, and change gradients with "
                    "ParameterStates::write_gradient() (Python: zerorun.utils.safe_set_full_grad())");
  }
  for (const NamedTensor& other : unbucketed) {
    if (other.is_buffer || !other.tensor.requires_grad()) continue;
    throw UserError("parameter " + other.name +
                    " was unfrozen after initialize(): parameters to train require grad before");
  }
  check_in_place();
  if (const int missed = reducer.missed_parameter(); missed >= 0) {
    throw UserError(
        call + "(): parameter " + parameters[missed].name +
        " had other memory (parameter.data = ...) during a backward, whose gradient is lost: drop "
        "all gradients with engine.zero_grad(), and run no backward in the GatheredParameters "
        "scope");
  }
}

void EngineState::check_before_step(const std::string& call) const {
  check_before_update(call);
  if (held.backwards() > 0) return;
  throw UserError(call + "() without an earlier backward that reached a parameter of the model" +
                  held.why_dropped());
}

}  // namespace zerorun
