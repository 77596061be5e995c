#include "activations/forward_state.h"

#include <ATen/Context.h>
#include <ATen/autocast_mode.h>
#include <ATen/ops/equal.h>

#include <algorithm>
#include <mutex>
#include <utility>

namespace zerorun {
namespace {

at::Tensor state_of(c10::Device device) {
  at::Generator generator = at::globalContext().defaultGenerator(device);
  const std::lock_guard lock(generator.mutex());
  return generator.get_state();
}

}  // namespace

GeneratorStates::GeneratorStates(const std::vector<c10::Device>& devices) {
  states_.emplace_back(c10::kCPU, state_of(c10::kCPU));
  for (const c10::Device device : devices) {
    const auto is_same = [&](const auto& known) { return known.first == device; };
    if (device.is_cuda() && std::ranges::none_of(states_, is_same))
      states_.emplace_back(device, state_of(device));
  }
}

void GeneratorStates::restore() const {
  for (const auto& [device, state] : states_) {
    at::Generator generator = at::globalContext().defaultGenerator(device);
    const std::lock_guard lock(generator.mutex());
    generator.set_state(state);
  }
}

bool GeneratorStates::are_current() const {
  return std::ranges::all_of(
      states_, [](const auto& known) { return at::equal(known.second, state_of(known.first)); });
}

AutocastState::AutocastState() : devices_(), caches_(at::autocast::is_autocast_cache_enabled()) {
  std::ranges::transform(std::array{c10::kCPU, c10::kCUDA}, devices_.begin(), [](c10::DeviceType type) {
    return OfDevice{type, at::autocast::is_autocast_enabled(type), at::autocast::get_autocast_dtype(type)};
  });
}

void AutocastState::apply() const {
  for (const OfDevice& device : devices_) {
    at::autocast::set_autocast_enabled(device.type, device.enabled);
    at::autocast::set_autocast_dtype(device.type, device.dtype);
  }
  at::autocast::set_autocast_cache_enabled(caches_);
}

bool AutocastState::enabled() const {
  return std::ranges::any_of(devices_, &OfDevice::enabled);
}

void AutocastState::enable(c10::DeviceType type, c10::ScalarType dtype) {
  const auto device = std::ranges::find(devices_, type, &OfDevice::type);
  if (device != devices_.end()) *device = {type, true, dtype};
}

AutocastScope::AutocastScope(const AutocastState& state) {
  if (state.enabled() || outer_.enabled()) at::autocast::clear_cache();
  at::autocast::increment_nesting();
  state.apply();
  if (state.enabled()) watch_.emplace();
}

AutocastScope::~AutocastScope() {
  at::autocast::decrement_nesting();
  if (at::autocast::is_autocast_enabled(c10::kCPU) || at::autocast::is_autocast_enabled(c10::kCUDA))
    at::autocast::clear_cache();
  outer_.apply();
}

AutocastCacheOff::AutocastCacheOff() : was_enabled_(at::autocast::is_autocast_cache_enabled()) {
  at::autocast::set_autocast_cache_enabled(false);
}

AutocastCacheOff::~AutocastCacheOff() {
  at::autocast::set_autocast_cache_enabled(was_enabled_);
}

}  // namespace zerorun
