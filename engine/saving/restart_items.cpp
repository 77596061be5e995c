#include "engine/saving/restart_items.h"

#include <ATen/Context.h>
#include <ATen/core/Generator.h>

#include <cstring>
#include <mutex>
#include <utility>

namespace zerorun {
namespace {

template <typename Number>
RestartItem number(std::string name, Number& value) {
  return {.name = std::move(name),
          .read = [&value] { return checkpoint::RestartValue(value); },
          .write = [&value](const checkpoint::RestartValue& given) { value = std::get<Number>(given); }};
}

void add_loss_scaler(std::vector<RestartItem>& items, LossScaler& scaler) {
  auto add = [&](const char* name, auto member) {
    using Number = std::remove_reference_t<decltype(std::declval<LossScaler::State&>().*member)>;
    items.push_back({.name = std::string("loss_scaler.") + name,
                     .read = [&scaler, member] { return checkpoint::RestartValue(scaler.state().*member); },
                     .write =
                         [&scaler, member](const checkpoint::RestartValue& given) {
                           LossScaler::State state = scaler.state();
                           state.*member = std::get<Number>(given);
                           scaler.set_state(state);
                         }});
  };
  add("scale", &LossScaler::State::scale);
  add("updates", &LossScaler::State::updates);
  add("last_overflow", &LossScaler::State::last_overflow);
  add("hysteresis", &LossScaler::State::hysteresis);
}

void add_group_items(std::vector<RestartItem>& items, ShardOptimizer& optimizer, int group) {
  const std::string prefix = "group " + std::to_string(group) + ".";
  items.push_back({.name = prefix + "lr",
                   .read = [&optimizer, group] { return checkpoint::RestartValue(optimizer.lr(group)); },
                   .write =
                       [&optimizer, group](const checkpoint::RestartValue& given) {
                         optimizer.set_lr(group, std::get<double>(given));
                       }});
  if (!optimizer.betas(group)) return;
  auto add_beta = [&](const char* name, auto member) {
    items.push_back({.name = prefix + name,
                     .read = [&optimizer, group,
                              member] { return checkpoint::RestartValue((*optimizer.betas(group)).*member); },
                     .write =
                         [&optimizer, group, member](const checkpoint::RestartValue& given) {
                           auto betas = *optimizer.betas(group);
                           betas.*member = std::get<double>(given);
                           optimizer.set_betas(group, betas);
                         }});
  };
  add_beta("beta1", &std::pair<double, double>::first);
  add_beta("beta2", &std::pair<double, double>::second);
}

RestartItem generator_of(c10::Device device) {
  auto generator = at::globalContext().defaultGenerator(device);
  auto read = [generator]() mutable {
    std::lock_guard lock(generator.mutex());
    const at::Tensor state = generator.get_state();
    const auto* bytes = state.const_data_ptr<uint8_t>();
    return checkpoint::RestartValue(std::vector<uint8_t>(bytes, bytes + state.numel()));
  };
  auto write = [generator](const checkpoint::RestartValue& given) mutable {
    std::lock_guard lock(generator.mutex());
    at::Tensor state = generator.get_state();
    const auto& bytes = std::get<std::vector<uint8_t>>(given);
    TORCH_CHECK(static_cast<int64_t>(bytes.size()) == state.numel(), "the state of another generator");
    std::memcpy(state.mutable_data_ptr<uint8_t>(), bytes.data(), bytes.size());
    generator.set_state(state);
  };
  return {.name = "generator." + c10::DeviceTypeName(device.type(), true),
          .read = read,
          .write = write,
          .may_be_missing = true};
}

RestartItem data_position_of(DataPosition& position) {
  return {.name = "data.position",
          .read = [&position] { return checkpoint::RestartValue(position.saved()); },
          .write =
              [&position](const checkpoint::RestartValue& given) {
                position.restore(std::get<std::vector<uint8_t>>(given));
              },
          .may_be_missing = true};
}

}  // namespace

std::vector<RestartItem> restart_items(EngineState& state) {
  StepCounts& counts = state.progress.restored_counts();
  std::vector<RestartItem> items = {number(kStepsItem, counts.global),
                                    number("steps.skipped", counts.skipped)};
  ShardOptimizer& optimizer = *state.optimizer;
  items.push_back({.name = "steps.optimizer",
                   .read = [&optimizer] { return checkpoint::RestartValue(optimizer.steps()); },
                   .write =
                       [&optimizer](const checkpoint::RestartValue& given) {
                         optimizer.set_steps(std::get<int64_t>(given));
                       }});
  for (int group = 0; group < optimizer.groups(); ++group) add_group_items(items, optimizer, group);
  if (state.scaler) add_loss_scaler(items, *state.scaler);
  if (state.data) items.push_back(data_position_of(*state.data));
  items.push_back(generator_of(c10::Device(c10::kCPU)));
  const c10::Device device = state.mesh.data().device().location();
  if (!device.is_cpu()) items.push_back(generator_of(device));
  return items;
}

}  // namespace zerorun
