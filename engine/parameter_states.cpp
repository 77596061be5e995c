#include "engine/parameter_states.h"

#include <ATen/ops/empty.h>
#include <c10/core/GradMode.h>

#include <algorithm>

#include "base/error.h"
#include "base/memory_report.h"
#include "engine/engine_state.h"
#include "zero/coded_states.h"

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

// Copies those elements of `from` that `to` has too. Both are 1-D ranges of one bucket, which begin at these
// offsets.
void copy_overlap(const at::Tensor& to, int64_t to_begin, const at::Tensor& from, int64_t from_begin) {
  const auto [begin, numel] = overlap({to_begin, to.numel()}, {from_begin, from.numel()});
  if (numel > 0) to.narrow(0, begin - to_begin, numel).copy_(from.narrow(0, begin - from_begin, numel));
}

}  // namespace

// Returns the index of a parameter; nothing for one that is in no bucket.
std::optional<int> ParameterStates::find_in_buckets(const at::Tensor& parameter) const {
  const auto& parameters = state_->buckets.parameters();
  for (size_t index = 0; index < parameters.size(); ++index) {
    if (parameters[index].tensor.is_same(parameter)) return static_cast<int>(index);
  }
  for (const NamedTensor& other : state_->unbucketed) {
    if (!other.is_buffer && other.tensor.is_same(parameter)) return std::nullopt;
  }
  throw UserError("ParameterStates: a tensor that is not a parameter of this engine: pass the model's own" +
                  state_->why_unknown());
}

// Likewise, but nothing for a frozen parameter either.
std::optional<int> ParameterStates::find(const at::Tensor& parameter) const {
  const std::optional<int> index = find_in_buckets(parameter);
  const bool frozen = index && state_->buckets.parameters()[*index].group == kFrozen;
  return frozen ? std::nullopt : index;
}

int ParameterStates::find_trained(const at::Tensor& parameter, const std::string& wanted) const {
  if (const std::optional<int> index = find(parameter)) return *index;
  throw UserError("ParameterStates: the parameter is frozen: it has no " + wanted);
}

// Whether step() sums the parameter's gradient over tensor ranks.
bool ParameterStates::is_summed(int parameter) const {
  return state_->buckets.parameters()[parameter].share == Share::summed;
}

void ParameterStates::check_shape(int parameter, const std::string& what, const at::Tensor& values) const {
  const std::vector<int64_t> expected = state_->buckets.whole_sizes(parameter);
  if (values.sizes() == expected) return;
  const std::string& name = state_->buckets.parameters()[parameter].name;
  throw UserError(c10::str(what, " of parameter ", name, ": expected values of shape ",
                           at::IntArrayRef(expected), ", found ", values.sizes()));
}

// This tensor rank's part of `values`, which are whole.
at::Tensor ParameterStates::part_of(int parameter, const at::Tensor& values) const {
  const NamedParameter& target = state_->buckets.parameters()[parameter];
  return target.split ? zerorun::part_of(values, *target.split, *state_->tensor_rule->group()) : values;
}

// `own`: this rank's slice of the parameter's bucket, in fp32.
at::Tensor ParameterStates::gather(int parameter, const at::Tensor& own, const std::string& what) const {
  const int bucket = state_->buckets.bucket_of(parameter);
  const AllocatingFor scope(MemoryUse::gathered);
  const at::Tensor whole = at::empty({state_->store.layout(bucket).numel}, own.options());
  state_->mesh.shards().all_gather(whole, own, what + " of bucket " + std::to_string(bucket))->wait();
  const at::Tensor of_rank = state_->buckets.view(parameter, whole);
  const NamedParameter& target = state_->buckets.parameters()[parameter];
  if (!target.split) return of_rank.clone();
  return whole_of(of_rank, *target.split, state_->tensor_rule->group(), what + " of " + target.name);
}

std::vector<std::string> ParameterStates::names(const at::Tensor& parameter) const {
  check_outside_backward("ParameterStates::names");
  state_->check_has_parameters("ParameterStates::names");
  state_->held.follow_marks("ParameterStates::names");
  state_->check_no_step_is_open("ParameterStates::names");
  std::vector<std::string> names;
  const std::optional<int> index = find(parameter);
  if (!index) return names;
  const int bucket = state_->buckets.bucket_of(*index);
  state_->store.for_each([&](int of, const StateTensor& state) {
    if (of == bucket && is_listed(state)) names.push_back(state.name);
  });
  return names;
}

at::Tensor ParameterStates::read(const at::Tensor& parameter, const std::string& name) const {
  c10::NoGradGuard no_grad;
  state_->finish_open_step();
  state_->check_between_steps("ParameterStates::read");
  state_->check_states_are_here("ParameterStates::read");
  state_->optimizer->follow_program();
  const int index = find_trained(parameter, "state \"" + name + "\"");
  const StateTensor& state = state_of(*state_, index, name);
  const int bucket = state_->buckets.bucket_of(index);
  const BucketLayout& layout = state_->store.layout(bucket);
  const auto options = at::TensorOptions(at::kFloat).device(state_->mesh.data().device().location());
  const at::Tensor own = at::empty({layout.slice_numel}, options);
  if (has_codes(state)) {
    own.copy_(numbers_of(state_->store, bucket, state, Extent::slice));
  } else {
    state_->store.for_each_chunk(bucket, /*changes=*/false, [&](int chunk) {
      const auto [begin, numel] = state_->store.chunk_range(bucket, chunk);
      own.narrow(0, begin, numel).copy_(state_->store.chunk(bucket, state, chunk));
    });
  }
  return gather(index, own, "state " + name);
}

// Completes the sums of all gradients over ranks. Returns the index of `parameter`.
int ParameterStates::find_complete_gradient(const at::Tensor& parameter, const std::string& call) const {
  EngineState& state = *state_;
  check_outside_backward("ParameterStates::" + call);
  state.check_has_parameters("ParameterStates::" + call);
  state.held.follow_failed_backward("ParameterStates::" + call);
  state.held.follow_marks("ParameterStates::" + call);
  state.check_before_step("ParameterStates::" + call);
  if (!state.progress.step_updates()) {
    throw UserError(
        "a parameter's gradient is whole only after the last backward() before an optimizer step: call " +
        call + "() where is_gradient_accumulation_boundary() is true");
  }
  const int index = find_trained(parameter, "gradient");
  state.reducer.finish_window();  // step() calls it again, and then finds nothing left to reduce
  return index;
}

at::Tensor ParameterStates::read_gradient(const at::Tensor& parameter) const {
  c10::NoGradGuard no_grad;
  const int index = find_complete_gradient(parameter, "read_gradient");
  const StateTensor& gradient = state_->store.at(state_->buckets.bucket_of(index), kGradient);
  at::Tensor whole = gather(index, gradient.own.to(at::kFloat), "gradient");
  if (is_summed(index)) {
    whole = whole.contiguous();
    const std::string& name = state_->buckets.parameters()[index].name;
    state_->mesh.along(MeshAxis::tensor).all_reduce(whole.view({-1}), "gradient of " + name)->wait();
  }
  if (state_->mesh.has_replicas()) {
    whole = whole.contiguous();
    state_->mesh.replicas().all_reduce(whole.view({-1}), "gradient of a parameter")->wait();
  }
  return whole.div_(state_->averaging.after * state_->loss_scale());
}

void ParameterStates::write_gradient(const at::Tensor& parameter, const at::Tensor& values) {
  c10::NoGradGuard no_grad;
  const int index = find_complete_gradient(parameter, "write_gradient");
  check_shape(index, "the gradient", values);
  const int bucket = state_->buckets.bucket_of(index);
  state_->reducer.start_change(bucket);
  state_->wrote_gradient = true;
  const double factor = state_->averaging.after * state_->loss_scale();
  const StateTensor& gradient = state_->store.at(bucket, kGradient);
  const at::Tensor part = part_of(index, values.to(at::kFloat));
  const at::Tensor piece = state_->buckets.flattened(index, part).mul(factor);
  // step() sums it over tensor ranks and over replicas.
  if ((is_summed(index) && state_->tensor_rule->group()->rank() > 0) || state_->mesh.replica() > 0)
    piece.zero_();
  const int64_t offset = state_->store.layout().locations[index].offset;
  if (gradient.extent == Extent::bucket) {
    gradient.memory.narrow(0, offset, piece.numel()).copy_(piece);
  } else {
    const int64_t numel = gradient.own.numel();
    copy_overlap(gradient.own, state_->mesh.shards().rank() * numel, piece, offset);
  }
}

bool ParameterStates::may_read_alone() const {
  if (state_->tensor_rule) return false;  // operators on split parameters sum over ranks
  return !state_->residency || state_->mesh.shards().world_size() == 1 ||
         state_->residency->allows_lone_reads();
}

bool ParameterStates::stays_whole(const at::Tensor& parameter) const {
  const std::optional<int> index = find_in_buckets(parameter);
  const Buckets& buckets = state_->buckets;
  if (!index) return true;
  return buckets.kind(buckets.bucket_of(*index)) == BucketKind::whole && !buckets.parameters()[*index].split;
}

bool ParameterStates::is_split(const at::Tensor& parameter) const {
  const std::optional<int> index = find_in_buckets(parameter);
  return index && state_->buckets.parameters()[*index].split;
}

std::vector<int64_t> ParameterStates::whole_sizes(const at::Tensor& parameter) const {
  const std::optional<int> index = find_in_buckets(parameter);
  return index ? state_->buckets.whole_sizes(*index) : parameter.sizes().vec();
}

bool ParameterStates::has_parameters() const {
  return state_->lost_parameter < 0;
}

void ParameterStates::write(const at::Tensor& parameter, const std::string& name, const at::Tensor& values) {
  c10::NoGradGuard no_grad;
  state_->finish_open_step();
  state_->check_between_steps("ParameterStates::write");
  state_->check_states_are_here("ParameterStates::write");
  state_->optimizer->follow_program();
  const int index = find_trained(parameter, "state \"" + name + "\"");
  state_->check_not_tied(index, "ParameterStates::write");
  const StateTensor& state = state_of(*state_, index, name);
  check_shape(index, "state \"" + name + "\"", values);
  const int bucket = state_->buckets.bucket_of(index);
  const BucketLayout& layout = state_->store.layout(bucket);
  state_->checkpoints.keep(bucket);
  const at::Tensor piece = state_->buckets.flattened(index, part_of(index, values.to(at::kFloat)));
  const int64_t offset = state_->store.layout().locations[index].offset;
  const int64_t slice = state_->mesh.shards().rank() * layout.slice_numel;
  if (has_codes(state)) {
    const at::Tensor numbers = numbers_of(state_->store, bucket, state, state.extent);
    copy_overlap(numbers, state.extent == Extent::bucket ? 0 : slice, piece, offset);
    return put_numbers(state_->store, bucket, state, state.extent, numbers);
  }
  if (state.extent == Extent::bucket) {
    state.memory.narrow(0, offset, piece.numel()).copy_(piece);
    return;
  }
  state_->store.for_each_chunk(bucket, /*changes=*/true, [&](int chunk) {
    const int64_t begin = slice + state_->store.chunk_range(bucket, chunk).begin;
    copy_overlap(state_->store.chunk(bucket, state, chunk), begin, piece, offset);
  });
}

}  // namespace zerorun
