// The parts of Engine and EngineState that count bytes of model state.
#include <algorithm>

#include "activations/recomputation.h"
#include "device/moment_codes.h"
#include "engine/engine.h"
#include "engine/engine_state.h"
#include "zero/coded_states.h"
#include "zero/stage.h"

namespace zerorun {

BytesPerParameter EngineState::bytes_per_parameter() const {
  double master = 0;
  double moments = 0;
  store.for_each([&](int bucket, const StateTensor& state) {
    if (state.home == Home::file || state.home == Home::host) return;
    if (state.kind != StateKind::master && state.kind != StateKind::moment) return;
    double& total = state.kind == StateKind::master ? master : moments;
    const int64_t of_block = has_codes(state) ? state.scales.element_size() : 0;
    for (int parameter : store.layout(bucket).parameters) {
      const int64_t numel = buckets.parameters()[parameter].tensor.numel();
      total += static_cast<double>(numel * state.memory.element_size() + coded_blocks(numel) * of_block);
    }
  });
  const double numel = std::max<double>(1, static_cast<double>(buckets.numel()));  // all may be empty
  return {.value = size_of(config.precision.training),
          .gradient = size_of(reducer.gradient_dtype()),
          .master = master / numel,
          .moments = moments / numel};
}

BytesByCategory EngineState::bytes_by_category() const {
  const ResidencyReport gathered = residency ? residency->report() : ResidencyReport{};
  BytesByCategory bytes{.buckets = reducer.buffer_bytes() + optimizer->buffer_bytes(),
                        .gathered = gathered.resident_bytes + gathered.cast_bytes};
  for (const SliceFiles* slices : {store.files(), store.value_files()}) {
    if (!slices) continue;
    bytes.buckets += slices->files().buffer_bytes();
    bytes.in_files += slices->files().file_bytes();
  }
  if (recomputation && recomputation->home().file) {
    const bool is_on_gpu = mesh.world().device().streams().asynchronous();
    (is_on_gpu ? bytes.on_host : bytes.buckets) += recomputation->home().file->buffer_bytes();
    bytes.in_files += recomputation->home().file->file_bytes();
  }
  for (const auto* others : {&unbucketed, &unsaved}) {
    for (const NamedTensor& other : *others) bytes.buffers += static_cast<int64_t>(other.tensor.nbytes());
  }
  auto category = [&](int bucket, StateKind kind) -> int64_t& {
    switch (kind) {
      case StateKind::value:
        return bucket < buckets.trained_count() ? bytes.parameters : bytes.buffers;
      case StateKind::master:
        return bytes.master;
      case StateKind::gradient:
        return bytes.gradients;
      case StateKind::moment:
        break;
    }
    return bytes.moments;
  };
  bytes.on_host = states_on_host.bytes();
  if (host_update) bytes.on_host += host_update->bytes();
  store.for_each([&](int bucket, const StateTensor& state) {
    if (states_on_host.has(state)) {  // counted in states_on_host.bytes(), but for scales, which stay
      if (has_codes(state)) bytes.moments += static_cast<int64_t>(state.scales.nbytes());
      return;
    }
    int64_t& where = state.home == Home::host ? bytes.on_host : category(bucket, state.kind);
    where += store.bytes(state);
  });
  return bytes;
}

BytesByUse EngineState::bytes_by_use() const {
  const BytesByCategory bytes = bytes_by_category();
  BytesByUse by_use{};
  const auto set = [&](MemoryUse use, int64_t value) { by_use[static_cast<size_t>(use)] = value; };
  set(MemoryUse::parameters, bytes.parameters);
  set(MemoryUse::gradients, bytes.gradients);
  set(MemoryUse::master, bytes.master);
  set(MemoryUse::moments, bytes.moments);
  set(MemoryUse::buckets, bytes.buckets);
  set(MemoryUse::buffers, bytes.buffers);
  set(MemoryUse::gathered, bytes.gathered);
  set(MemoryUse::on_host, bytes.on_host);
  return by_use;
}

BytesByCategory Engine::bytes_by_category() const {
  return state_->bytes_by_category();
}

double Engine::formula_bytes() const {
  return model_state_bytes(state_->buckets.numel(), state_->buckets.whole_numel(),
                           state_->buckets.numel_fetched(), state_->mesh.shards().world_size(),
                           state_->policy, state_->bytes_per_parameter());
}

}  // namespace zerorun
