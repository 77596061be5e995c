#include "engine/gathered_parameters.h"

#include <c10/core/GradMode.h>

#include <algorithm>
#include <exception>
#include <string>
#include <utility>

#include "base/error.h"
#include "base/memory_report.h"
#include "comm/agreement.h"
#include "engine/engine_state.h"
#include "engine/model_broadcast.h"
#include "zero/interception.h"

namespace zerorun {
namespace {

// The index of `tensor` among the parameters in buckets; -1 for a parameter of the model outside of buckets.
int find_parameter(const EngineState& state, const at::Tensor& tensor, size_t position) {
  const auto& parameters = state.buckets.parameters();
  for (size_t index = 0; index < parameters.size(); ++index) {
    if (parameters[index].tensor.is_same(tensor)) return static_cast<int>(index);
  }
  for (const auto& [name, parameter] : state.model.parameters) {
    if (parameter.is_same(tensor)) return -1;
  }
  throw UserError("GatheredParameters: tensor " + std::to_string(position) +
                  " is not a parameter of the engine's model: pass the model's own parameters, not copies" +
                  state.why_unknown());
}

// Whether memory of the two tensors' storages overlaps. A tensor may have the memory of a parameter by other
// ways than views: from_blob(), numpy.
bool share_memory(const at::Tensor& one, const at::Tensor& other) {
  const auto begin = [](const at::Tensor& tensor) {
    return reinterpret_cast<uintptr_t>(tensor.storage().data());
  };
  return begin(one) < begin(other) + other.storage().nbytes() &&
         begin(other) < begin(one) + one.storage().nbytes();
}

bool is_same_memory(const at::Tensor& one, const at::Tensor& other) {
  return one.is_alias_of(other) && one.storage_offset() == other.storage_offset() &&
         one.sizes() == other.sizes() && one.strides() == other.strides();
}

}  // namespace

GatherScope::GatherScope(Engine& engine, const std::vector<at::Tensor>& parameters,
                         std::optional<int> modifier_rank)
    : state_(engine.state_), modifier_rank_(modifier_rank) {
  state_->check_has_parameters("GatheredParameters");
  if (modifier_rank && state_->has_tensor_plan)
    state_->check_not_divided("GatheredParameters with a modifier rank and a tensor plan");
  const int ranks = sharing().world_size();
  if (modifier_rank && (*modifier_rank < 0 || *modifier_rank >= ranks)) {
    throw UserError("GatheredParameters: modifier rank " + std::to_string(*modifier_rank) +
                    " is not one of the " + std::to_string(ranks) + " ranks");
  }
  for (size_t position = 0; position < parameters.size(); ++position) {
    const int index = find_parameter(*state_, parameters[position], position);
    if (index >= 0 && modifier_rank)
      state_->check_not_tied(index, "a GatheredParameters scope with a modifier rank");
    if (index >= 0 && std::ranges::find(bucketed_, index) != bucketed_.end()) continue;
    if (index < 0) {
      whole_.push_back(parameters[position]);
      memory_of_whole_.push_back(parameters[position].variable_data());
    } else {
      bucketed_.push_back(index);
      in_place_.push_back(state_->buckets.in_place(index));
      buckets_.push_back(state_->buckets.bucket_of(index));
    }
  }
  std::sort(buckets_.begin(), buckets_.end());
  buckets_.erase(std::unique(buckets_.begin(), buckets_.end()), buckets_.end());
  if (state_->residency) state_->residency->hold(buckets_);
  state_->open_scopes.push_back(this);
  is_open_ = true;
  try {
    keep_values();
    show_wholes();
  } catch (...) {
    close(true);
    throw;
  }
}

GatherScope::~GatherScope() {
  close(true);
}

void GatherScope::close(bool unwinding) {
  if (!std::exchange(is_open_, false)) return;
  std::erase(state_->open_scopes, this);
  ScopeEnd end = modifier_rank_ ? ScopeEnd::abandoned : ScopeEnd::read;
  std::exception_ptr failure;
  try {
    hide_wholes();
    const std::vector<Replaced> replaced = take_replaced();
    if (modifier_rank_ && !unwinding) {
      std::vector<at::Tensor> sources;
      on_all_ranks(sharing(), "memory given to gathered parameters", [&] {
        check_wholes();
        sources = sources_of(replaced);
      });
      const c10::NoGradGuard no_grad;
      for (size_t index = 0; index < sources.size(); ++index)
        at::Tensor(replaced[index].own).copy_(sources[index]);
      share_writes();
      end = ScopeEnd::written;
    } else if (!unwinding) {
      refuse_other_memory(replaced);
      keep_writes();
    }
  } catch (...) {
    failure = std::current_exception();
  }
  try {
    if (end == ScopeEnd::abandoned) undo();
  } catch (...) {
    if (!failure) failure = std::current_exception();
  }
  try {
    if (state_->residency) state_->residency->unhold(buckets_, end);
  } catch (...) {
    if (!failure) failure = std::current_exception();
  }
  if (failure && !unwinding) std::rethrow_exception(failure);
}

const at::Tensor& GatherScope::parameter(size_t position) const {
  const size_t bucketed = bucketed_.size();
  return position < bucketed ? state_->buckets.parameters()[bucketed_[position]].tensor
                             : whole_[position - bucketed];
}

// The parameter's own memory, which the current stream may read and write.
at::Tensor GatherScope::memory(size_t position) const {
  if (position >= bucketed_.size()) return memory_of_whole_[position - bucketed_.size()];
  const int index = bucketed_[position];
  const int bucket = state_->buckets.bucket_of(index);
  return state_->buckets.piece(
      index, state_->residency ? state_->residency->start_write(bucket) : state_->buckets.flat(bucket));
}

void GatherScope::show_wholes() {
  if (!state_->tensor_rule) return;
  const c10::NoGradGuard no_grad;
  const Buckets& buckets = state_->buckets;
  for (size_t position = 0; position < bucketed_.size(); ++position) {
    const int index = bucketed_[position];
    const NamedParameter& parameter = buckets.parameters()[index];
    if (!parameter.split) continue;
    if (!in_place_[position]) {
      wholes_.push_back({position, {}, false});
      continue;
    }
    const at::Tensor part = memory(position).as_strided(buckets.sizes(index), buckets.strides(index));
    const at::Tensor whole =
        whole_of(part, *parameter.split, state_->tensor_rule->group(), "parameter " + parameter.name);
    wholes_.push_back({position, whole, true});
    parameter.tensor.set_data(whole);
  }
}

void GatherScope::hide_wholes() {
  if (state_->lost_parameter >= 0) return;
  bool hidden = false;
  for (Whole& whole : wholes_) {
    const int index = bucketed_[whole.position];
    const at::Tensor& tensor = state_->buckets.parameters()[index].tensor;
    const at::Tensor given = tensor.variable_data();
    whole.is_replaced = whole.is_own && !is_same_memory(given, whole.values);
    whole.values = given;
    if (!whole.is_own) continue;
    state_->buckets.put_back(index);
    hidden = true;
  }
  if (hidden) state_->held.hook_again();
}

// The modifier rank may have given a split parameter other memory, which must fit the whole one.
void GatherScope::check_wholes() const {
  if (!is_modifier()) return;
  for (const Whole& whole : wholes_) {
    const int index = bucketed_[whole.position];
    const NamedParameter& parameter = state_->buckets.parameters()[index];
    const std::vector<int64_t> sizes = state_->buckets.whole_sizes(index);
    const at::ScalarType kind = parameter.tensor.scalar_type();
    if (whole.values.sizes() == sizes && whole.values.scalar_type() == kind) continue;
    throw UserError(c10::str("GatheredParameters: parameter ", parameter.name, " is ", at::IntArrayRef(sizes),
                             " of ", kind, " and has got ", whole.values.sizes(), " of ",
                             whole.values.scalar_type(), " in the scope: give it a tensor that fits"));
  }
}

void GatherScope::refuse_other_memory(const std::vector<Replaced>& replaced) const {
  std::string name = replaced.empty() ? "" : replaced.front().name;
  for (const Whole& whole : wholes_) {
    if (whole.is_replaced) name = state_->buckets.parameters()[bucketed_[whole.position]].name;
  }
  if (name.empty()) return;
  throw UserError("GatheredParameters: parameter " + name +
                  " has got other memory in the scope (parameter.data = ...), which only a scope with a "
                  "modifier rank takes over: give one, or copy values in place "
                  "(parameter.data.copy_(...))");
}

// Without a modifier rank: what all ranks have written to a whole is a write to the part.
void GatherScope::keep_writes() {
  const c10::NoGradGuard no_grad;
  const Buckets& buckets = state_->buckets;
  for (const Whole& whole : wholes_) {
    const int index = bucketed_[whole.position];
    const NamedParameter& parameter = buckets.parameters()[index];
    if (!whole.is_own) continue;
    const at::Tensor written = part_of(whole.values, *parameter.split, *state_->tensor_rule->group());
    const at::Tensor part = buckets.local_view(parameter.tensor.detach());
    if (!at::equal(part, written)) part.copy_(written);
  }
}

void GatherScope::keep_values() {
  if (!modifier_rank_ || !is_modifier()) return;
  const AllocatingFor scope(MemoryUse::gathered);
  const c10::NoGradGuard no_grad;
  for (size_t position = 0; position < count(); ++position) {
    const bool undone = position < bucketed_.size() && state_->residency &&
                        state_->residency->undoes_writes(state_->buckets.bucket_of(bucketed_[position]));
    if (!undone) kept_.push_back({position, memory(position).clone()});
  }
}

// All ranks have got what a scope within this one wrote, so undo() may not take it back on this rank alone.
void GatherScope::follow(const GatherScope& inner) {
  for (Kept& kept : kept_) {
    for (size_t position = 0; position < inner.count(); ++position) {
      if (inner.parameter(position).is_same(parameter(kept.position)))
        kept.values.copy_(memory(kept.position));
    }
  }
}

void GatherScope::undo() {
  const c10::NoGradGuard no_grad;
  for (const Kept& kept : kept_) {
    memory(kept.position).copy_(kept.values);
    parameter(kept.position).unsafeGetTensorImpl()->bump_version();
  }
}

// The parameters return to their own memory.
std::vector<GatherScope::Replaced> GatherScope::take_replaced() {
  std::vector<Replaced> replaced;
  if (state_->lost_parameter >= 0) return replaced;  // an engine that was made in the scope has them
  const Buckets& buckets = state_->buckets;
  for (size_t position = 0; position < bucketed_.size(); ++position) {
    const int index = bucketed_[position];
    if (in_place_[position] == 0 || buckets.in_place(index)) continue;
    const NamedParameter& parameter = buckets.parameters()[index];
    const at::Tensor given = parameter.tensor.variable_data();
    buckets.put_back(index);
    replaced.push_back({parameter.name, parameter.tensor.variable_data(), given});
  }
  if (!replaced.empty()) state_->held.hook_again();
  for (size_t position = 0; position < whole_.size(); ++position) {
    const at::Tensor& own = memory_of_whole_[position];
    const at::Tensor given = whole_[position].variable_data();
    if (is_same_memory(given, own)) continue;
    whole_[position].set_data(own);
    replaced.push_back({"of the scope, which is frozen,", own, given});
  }
  return replaced;
}

// What to copy to the parameters' own memory: the tensors that the modifier rank gave, or copies of those
// that lie in memory of the scope (a swap). Throws UserError if one does not fit.
std::vector<at::Tensor> GatherScope::sources_of(const std::vector<Replaced>& replaced) const {
  if (!is_modifier()) return {};
  for (const auto& [name, own, given] : replaced) {
    if (given.sizes() == own.sizes() && given.scalar_type() == own.scalar_type()) continue;
    throw UserError(c10::str("GatheredParameters: parameter ", name, " is ", own.sizes(), " of ",
                             own.scalar_type(), " and has got ", given.sizes(), " of ", given.scalar_type(),
                             " in the scope (parameter.data = ...): give it a tensor of the same shape and "
                             "dtype"));
  }
  const c10::NoGradGuard no_grad;
  std::vector<at::Tensor> sources;
  for (const Replaced& one : replaced) {
    // Memory of an engine is asked for by an operator: it may have no address now.
    const bool cloned = owner_of(one.given) || std::ranges::any_of(replaced, [&](const Replaced& other) {
                          return share_memory(one.given, other.own);
                        });
    sources.push_back(cloned ? one.given.clone() : one.given);
  }
  return sources;
}

// The ranks that get the modifier rank's writes. Its number is one of theirs.
Communicator& GatherScope::sharing() const {
  return state_->has_tensor_plan ? state_->mesh.world() : state_->mesh.data();
}

bool GatherScope::is_modifier() const {
  return sharing().rank() == *modifier_rank_;
}

// First to the tensor ranks beside the modifier rank, then by these to the other data ranks.
void GatherScope::broadcast(const std::string& name, const at::Tensor& values) const {
  const Mesh& mesh = state_->mesh;
  MeshCoordinates from = {.data = *modifier_rank_};
  if (state_->has_tensor_plan) from = coordinates_of(*modifier_rank_, mesh.sizes());
  if (state_->has_tensor_plan && mesh.data().rank() == from.data)
    broadcast_tensor({name, values}, from.tensor, mesh.along(MeshAxis::tensor));
  broadcast_tensor({name, values}, from.data, mesh.data());
}

void GatherScope::share_wholes() {
  const Buckets& buckets = state_->buckets;
  for (const Whole& whole : wholes_) {
    const int index = bucketed_[whole.position];
    const NamedParameter& parameter = buckets.parameters()[index];
    const std::vector<int64_t> sizes = buckets.whole_sizes(index);
    at::Tensor values = whole.values;
    // Other ranks may have given the parameter memory that does not fit.
    if (!values.is_contiguous() || values.sizes() != at::IntArrayRef(sizes))
      values = is_modifier() ? values.contiguous() : at::empty(sizes, values.options());
    broadcast("parameter " + parameter.name, values);
    const at::Tensor part = part_of(values, *parameter.split, *state_->tensor_rule->group());
    memory(whole.position).as_strided(buckets.sizes(index), buckets.strides(index)).copy_(part);
    if (!whole.is_own) at::Tensor(whole.values).copy_(values);
  }
}

void GatherScope::share_writes() {
  share_wholes();
  for (size_t position = 0; position < bucketed_.size(); ++position) {
    const NamedParameter& named = state_->buckets.parameters()[bucketed_[position]];
    if (!named.split) broadcast("parameter " + named.name, memory(position));
    parameter(position).unsafeGetTensorImpl()->bump_version();
  }
  for (const at::Tensor& tensor : whole_) {
    broadcast("a parameter of the GatheredParameters scope", tensor);
    tensor.unsafeGetTensorImpl()->bump_version();
  }
  for (GatherScope* outer : state_->open_scopes) outer->follow(*this);
}

GatheredParameters::GatheredParameters(Engine& engine, const std::vector<at::Tensor>& parameters,
                                       std::optional<int> modifier_rank)
    : scope_(engine, parameters, modifier_rank), exceptions_(std::uncaught_exceptions()) {}

GatheredParameters::~GatheredParameters() noexcept(false) {
  scope_.close(std::uncaught_exceptions() != exceptions_);
}

}  // namespace zerorun
