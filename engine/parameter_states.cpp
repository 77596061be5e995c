#include "engine/parameter_states.h"

#include <ATen/ops/empty.h>
#include <c10/core/GradMode.h>

#include "base/error.h"
#include "engine/engine_state.h"

namespace zerorun {
namespace {

bool is_listed(const StateTensor& state) {
  return state.kind == StateKind::master || state.kind == StateKind::moment;
}

const StateTensor& state_of(const EngineState& state, int parameter, const std::string& name) {
  const int bucket = state.buckets.bucket_of(parameter);
  if (state.store.has(bucket, name) && is_listed(state.store.at(bucket, name)))
    return state.store.at(bucket, name);
  throw UserError("parameter " + state.buckets.parameters()[parameter].name + " has no state \"" + name +
                  "\": ask ParameterStates::names() for those of " + state.optimizer_name);
}

}  // namespace

int ParameterStates::find(const at::Tensor& parameter) const {
  const auto& parameters = state_->buckets.parameters();
  for (size_t index = 0; index < parameters.size(); ++index) {
    if (parameters[index].tensor.is_same(parameter)) return static_cast<int>(index);
  }
  throw UserError(
      "ParameterStates: a tensor that is not a parameter which this engine trains: pass the model's own");
}

// `own`: this rank's slice of the parameter's bucket, in fp32.
at::Tensor ParameterStates::gather(int parameter, const at::Tensor& own, const std::string& what) const {
  const int bucket = state_->buckets.bucket_of(parameter);
  const at::Tensor whole = at::empty({state_->buckets.layout(bucket).numel}, own.options());
  state_->communicator->all_gather(whole, own, what + " of bucket " + std::to_string(bucket))->wait();
  return state_->buckets.view(parameter, whole).clone();
}

std::vector<std::string> ParameterStates::names(const at::Tensor& parameter) const {
  state_->check_between_steps("names of states");
  const int bucket = state_->buckets.bucket_of(find(parameter));
  std::vector<std::string> names;
  state_->store.for_each([&](int of, const StateTensor& state) {
    if (of == bucket && is_listed(state)) names.push_back(state.name);
  });
  return names;
}

at::Tensor ParameterStates::read(const at::Tensor& parameter, const std::string& name) const {
  c10::NoGradGuard no_grad;
  state_->finish_open_step();
  state_->check_between_steps("reading a state");
  const int index = find(parameter);
  const StateTensor& state = state_of(*state_, index, name);
  const int bucket = state_->buckets.bucket_of(index);
  const BucketLayout& layout = state_->buckets.layout(bucket);
  const auto options = at::TensorOptions(at::kFloat).device(state_->communicator->device().location());
  const at::Tensor own = at::empty({layout.slice_numel}, options);
  state_->store.for_each_chunk(bucket, /*changes=*/false, [&](int chunk) {
    const auto [begin, numel] = state_->store.chunk_range(bucket, chunk);
    own.narrow(0, begin, numel).copy_(state_->store.chunk(bucket, state, chunk));
  });
  return gather(index, own, "state " + name);
}

at::Tensor ParameterStates::read_gradient(const at::Tensor& parameter) const {
  c10::NoGradGuard no_grad;
  EngineState& state = *state_;
  state.drop_failed_backward();
  state.check_before_step("ParameterStates::read_gradient");
  if (!state.step_updates()) {
    throw UserError(
        "a parameter's gradient is whole only after the last backward() before an optimizer step: read it "
        "where is_gradient_accumulation_boundary() is true");
  }
  const int index = find(parameter);
  if (index >= static_cast<int>(state.buckets.trained().size())) {
    throw UserError("parameter " + state.buckets.parameters()[index].name + " is frozen: it has no gradient");
  }
  state.reducer.finish_window();  // step() calls it again, and then finds nothing left to reduce
  const at::Tensor own = state.store.at(state.buckets.bucket_of(index), kGradient).own.to(at::kFloat);
  return gather(index, own, "gradient").div_(state.averaging.after * state.loss_scale());
}

bool ParameterStates::may_read_alone() const {
  return !state_->residency || state_->communicator->world_size() == 1 ||
         state_->residency->allows_lone_reads();
}

void ParameterStates::write(const at::Tensor& parameter, const std::string& name, const at::Tensor& values) {
  c10::NoGradGuard no_grad;
  state_->finish_open_step();
  state_->check_between_steps("writing a state");
  const int index = find(parameter);
  const StateTensor& state = state_of(*state_, index, name);
  if (values.sizes() != parameter.sizes()) {
    throw UserError(c10::str("state \"", name, "\" of parameter ", state_->buckets.parameters()[index].name,
                             ": expected values of shape ", parameter.sizes(), ", found ", values.sizes()));
  }
  const int bucket = state_->buckets.bucket_of(index);
  const BucketLayout& layout = state_->buckets.layout(bucket);
  state_->checkpoints.keep(bucket);
  const at::Tensor piece = state_->buckets.flattened(index, values.to(at::kFloat));
  const int64_t offset = state_->store.layout().locations[index].offset;
  if (state.extent == Extent::bucket) {
    state.memory.narrow(0, offset, piece.numel()).copy_(piece);
    return;
  }
  const int64_t slice = state_->communicator->rank() * layout.slice_numel;
  state_->store.for_each_chunk(bucket, /*changes=*/true, [&](int chunk) {
    const auto [begin, numel] = state_->store.chunk_range(bucket, chunk);
    const int64_t first = std::max(offset, slice + begin);
    const int64_t end = std::min(offset + piece.numel(), slice + begin + numel);
    if (first >= end) return;
    state_->store.chunk(bucket, state, chunk)
        .narrow(0, first - slice - begin, end - first)
        .copy_(piece.narrow(0, first - offset, end - first));
  });
}

}  // namespace zerorun
