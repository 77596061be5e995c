#include <sstream>

#include "engine/parameter_states.h"
#include "tests/random_programs/engines.h"
#include "tests/random_programs/expected_errors.h"

namespace zerorun::testing {
namespace {

void drop(const Operation& operation, ProgramEngine& running, Model& model) {
  switch (operation.how) {
    case by_engine_zero_grad:
      return running.zero ? running.zero->zero_grad() : running.get().zero_grad();
    case by_model:
    case by_model_zeros:
      return model.zero_grad(/*set_to_none=*/operation.how == by_model);
    case by_optimizer: {
      torch::optim::SGD of_parameters(model.all, 0.1);
      return running.optimizer ? running.optimizer->zero_grad() : of_parameters.zero_grad();
    }
    case by_hand:
      for (const at::Tensor& parameter : model.all) parameter.mutable_grad().reset();
      return;
    default:
      for (int index : operation.parameters) model.all[index].mutable_grad().reset();
  }
}

// What is refused is taken back.
void change_group(const Operation& operation, ProgramEngine& running) {
  Engine& engine = running.get();
  const int group = operation.slot % kGroups;
  switch (operation.how) {
    case of_rate:
      if (running.optimizer && !running.scheduler && operation.data % 2 == 1) {
        return running.optimizer->param_groups()[group].options().set_lr(rate_of(operation));
      }
      return engine.set_lr(group, rate_of(operation));
    case of_decay:
      return engine.set_weight_decay(group, rate_of(operation));
    case of_momentum:
      set_momentum(*running.optimizer, 0.9);
      break;
    default:
      running.optimizer->add_param_group(torch::optim::OptimizerParamGroup({at::ones({2})}));
  }
  try {
    engine.step();
  } catch (...) {
    if (operation.how == of_momentum) {
      set_momentum(*running.optimizer, 0);
    } else {
      running.optimizer->param_groups().pop_back();
    }
    throw;
  }
}

void run_state(const Operation& operation, ProgramEngine& running, const Model& model,
               JournalReader& reader) {
  ParameterStates states(running.get());
  for (int index : operation.parameters) {
    const at::Tensor& parameter = model.all[index];
    if (operation.how == 0) reader.compare(states.read(parameter, running.moment));
    if (operation.how == 1)
      states.write(parameter, running.moment, numbers(parameter.sizes(), operation.data));
  }
}

void run_gradient(const Operation& operation, Engine& engine, const Model& model, JournalReader& reader) {
  ParameterStates states(engine);
  for (int index : operation.parameters) {
    const at::Tensor& parameter = model.all[index];
    reader.compare(states.read_gradient(parameter));
    if (operation.how == 0) continue;
    reader.attempt("write_gradient()",
                   [&] { states.write_gradient(parameter, numbers(parameter.sizes(), operation.data)); });
  }
}

void run_optimizer_file(const Operation& operation, ProgramEngine& running) {
  std::stringstream file(running.optimizer_file);
  if (operation.how == 1) return torch::load(*running.optimizer, file);
  torch::save(*running.optimizer, file);
  running.optimizer_file = file.str();
}

}  // namespace

std::string tag_of(const Operation& operation) {
  return "slot" + std::to_string(operation.slot);
}

void run_change(const Operation& operation, const std::string& text, ProgramEngine& running, Model& model,
                const std::filesystem::path& folder, JournalReader& reader) {
  Engine& engine = running.get();
  const bool is_refused = !reader.next_text().empty();
  reader.attempt(text, [&] {
    switch (operation.kind) {
      case Kind::drop:
        return drop(operation, running, model);
      case Kind::set_gradient: {
        const at::Tensor& target = model.all[operation.parameters.front()];
        target.mutable_grad() = numbers(target.sizes(), operation.data).to(target.scalar_type());
        return;
      }
      case Kind::clip:
        if (operation.how == 0) torch::nn::utils::clip_grad_norm_(model.all, 0.01);
        if (operation.how == 1) torch::nn::utils::clip_grad_value_(model.all, 0.01);
        return;
      case Kind::gradient:
        return run_gradient(operation, engine, model, reader);
      case Kind::flip:
        for (int index : operation.parameters) flip(model.all[index]);
        return;
      case Kind::boundary:
        return engine.set_gradient_accumulation_boundary(operation.how != 0);
      case Kind::offload:
        return operation.how == 0 ? engine.offload_states() : engine.reload_states();
      case Kind::group:
        return change_group(operation, running);
      case Kind::state:
        return run_state(operation, running, model, reader);
      case Kind::optimizer_file:
        return run_optimizer_file(operation, running);
      case Kind::save:
        running.last_save_failed = is_refused;
        engine.save_checkpoint(folder, tag_of(operation), {.exclude_frozen = operation.how == 2});
        // The writer reports that a window's gradients cannot be saved.
        if (operation.how == 1 || is_refused) engine.wait_for_checkpoint();
        return;
      default:
        throw std::logic_error("an operation that changes nothing");
    }
  });
}

}  // namespace zerorun::testing
