#include "zero/buckets.h"

#include <ATen/ExpandUtils.h>
#include <ATen/ops/as_strided.h>
#include <ATen/ops/empty_strided.h>
#include <c10/core/GradMode.h>

#include <algorithm>
#include <exception>
#include <utility>

#include "base/error.h"
#include "base/log.h"
#include "base/progress_bar.h"
#include "device/dtypes.h"
#include "device/tensor_run.h"

namespace zerorun {
namespace {

constexpr const char* kReleased =
    "this parameter is partitioned (ZeRO stage 3) and not gathered now, so it has no data here. Operators "
    "gather it by themselves, so clone() has its values; for data_ptr(), storage() or saving open a "
    "GatheredParameters scope around the access (C++: zerorun::GatheredParameters, Python: "
    "zerorun.zero.GatheredParameters; Python's engine.gather_around() gathers around modules that read "
    "addresses)";
constexpr const char* kPending =
    "the updated values of this parameter are still being gathered. Operators wait for them automatically, "
    "so clone() has its values; before data_ptr(), storage() or saving call engine.synchronize()";
constexpr const char* kShared =
    "the values of this parameter lie in memory that the ranks of this host share. Operators use them as "
    "they are, so clone() has its values; for data_ptr(), storage() or saving open a GatheredParameters "
    "scope around the access (C++: zerorun::GatheredParameters, Python: zerorun.zero.GatheredParameters), or "
    "at stages 1 and 2 call engine.synchronize() before, which makes a copy";
constexpr const char* kIncomplete =
    "the engine was destroyed before the last update of this parameter had arrived on this rank, so its "
    "values are incomplete: end the run";
constexpr const char* kSplit =
    "this parameter is split among tensor ranks, and this rank has a part of it, which only operators use; "
    "for data_ptr(), storage() or saving open a GatheredParameters scope around the access, which shows all "
    "of it (C++: zerorun::GatheredParameters, Python: zerorun.zero.GatheredParameters)";
constexpr const char* kPartGone =
    "the engine that computed with this rank's part of this parameter (tensor parallelism) was destroyed, "
    "and no tensor has the whole parameter: keep the engine as long as the model";
constexpr const char* kGone =
    "the engine that held the slices of this parameter (ZeRO stage 3) was destroyed, and the values with it: "
    "keep the engine as long as the model";

std::string make_label(int bucket, const BucketLayout& layout,
                       const std::vector<NamedParameter>& parameters) {
  std::string label = "bucket " + std::to_string(bucket) + " (" + parameters[layout.parameters.front()].name;
  const size_t more = layout.parameters.size() - 1;
  if (more > 0) label += " and " + std::to_string(more) + " more";
  return label + ")";
}

// The start of a message about raw access. A storage has the parameters of a bucket, and it is not known
// which one was accessed.
std::string named_in_message(const BucketLayout& layout, const std::vector<NamedParameter>& parameters) {
  constexpr size_t kNamed = 8;
  const size_t count = layout.parameters.size();
  if (count == 1) return "parameter " + parameters[layout.parameters.front()].name + ": ";
  std::string names = "one of the parameters ";
  for (size_t index = 0; index < std::min(count, kNamed); ++index)
    names += (index > 0 ? ", " : "") + parameters[layout.parameters[index]].name;
  if (count > kNamed) names += " and " + std::to_string(count - kNamed) + " more";
  return names + ": ";
}

// Returns a pointer to the tensor's memory that keeps the memory alive.
c10::DataPtr keep_alive(const at::Tensor& tensor) {
  auto* holder = new at::Tensor(tensor);
  return {tensor.mutable_data_ptr(), holder, [](void* context) { delete static_cast<at::Tensor*>(context); },
          tensor.device()};
}

}  // namespace

int64_t numel_of_part(const NamedParameter& parameter, int rank) {
  if (!parameter.split) return parameter.tensor.numel();
  return c10::multiply_integers(sizes_of_part(parameter.tensor.sizes(), *parameter.split, rank));
}

Buckets::Buckets(std::vector<NamedParameter> parameters, SliceStore& store, Communicator& communicator,
                 const BucketOptions& options)
    : store_(&store),
      communicator_(&communicator),
      device_(&communicator.device()),
      parameters_(std::move(parameters)),
      options_(options),
      masters_(store, communicator, options),
      rank_(communicator.rank()) {
  c10::NoGradGuard no_grad;
  if (options.marked) {
    install_interception();
    owners_ = std::make_unique<StorageOwner[]>(2 * static_cast<size_t>(store_->count()));
  }
  for (const NamedParameter& parameter : parameters_) {
    const at::Tensor& tensor = parameter.tensor;
    Shape shape{tensor.sizes().vec(), tensor.strides().vec(), tensor.numel()};
    if (parameter.split) {
      shape.sizes = sizes_of_part(tensor.sizes(), *parameter.split, options.tensor->rank());
      shape.strides = at::infer_dense_strides(shape.sizes, tensor.strides());
      shape.numel = c10::multiply_integers(shape.sizes);
    }
    shapes_.push_back(std::move(shape));
    trained_parameters_ += parameter.group != kFrozen;
  }
  trained_count_ = static_cast<int>(std::ranges::count_if(
      store.layout().buckets, [](const BucketLayout& bucket) { return bucket.group != kFrozen; }));
  for (int bucket = 0; bucket < store_->count(); ++bucket)
    labels_.push_back(make_label(bucket, store_->layout(bucket), parameters_));
  shared_.resize(store_->count());
  own_values_.resize(store_->count());
  incomplete_.resize(store_->count());
  if (options.shared && store.value_files())
    shared_gathers_ = std::make_unique<SharedGathers>(store_->count(), communicator);
  int64_t numel = 0;
  for (const BucketLayout& bucket : store.layout().buckets) numel += bucket.numel;
  ProgressBar bar("building the model", numel, communicator.rank_in_job(communicator.rank()) == 0);
  try {
    for (int bucket = 0; bucket < store_->count(); ++bucket) {
      move_in(bucket);
      bar.advance(store_->layout(bucket).numel);
    }
  } catch (...) {
    leave();  // here, because the destructor will not run
    throw;
  }
}

std::string Buckets::message_without_memory(int bucket) const {
  const BucketLayout& layout = store_->layout(bucket);
  return named_in_message(layout, parameters_) + (is_split(bucket)     ? kSplit
                                                  : layout.partitioned ? kReleased
                                                  : shared(bucket)     ? kShared
                                                                       : kPending);
}

Buckets::~Buckets() {
  leave();
}

// Detaches the parameters, which outlive the engine. Parameters of whole buckets keep their values.
void Buckets::leave() {
  if (!marked()) return;
  for (int bucket = 0; bucket < static_cast<int>(storages_.size()); ++bucket) {
    const bool whole = store_->has(bucket, kValue) && !store_->layout(bucket).partitioned;
    const bool stays = whole && !incomplete_[bucket] && !is_split(bucket);
    const at::Tensor own = stays ? values_to_leave(bucket) : at::Tensor();
    if (own.defined()) {
      leave_memory(storages_[bucket], keep_alive(own));
    } else {
      const std::string message =
          named_in_message(store_->layout(bucket), parameters_) + (is_split(bucket) ? kPartGone
                                                                   : whole          ? kIncomplete
                                                                                    : kGone);
      leave_without_memory(storages_[bucket], message);
      if (is_split(bucket)) leave_without_memory(local_storages_[bucket], message);
    }
  }
}

// Returns the values that the parameters keep when the engine is destroyed; undefined if there is no memory
// for the values.
at::Tensor Buckets::values_to_leave(int bucket) const {
  if (own_values_[bucket].defined()) return own_values_[bucket];
  if (!shared(bucket)) return flat(bucket);
  try {
    return communicator_->make_own(flat(bucket));
  } catch (const std::exception& error) {
    log_warning("the parameters of " + label(bucket) + " have no values any more: " + error.what());
    return {};
  }
}

void Buckets::listen(OperatorListener* listener) {
  for (int number = 0; number < 2 * store_->count(); ++number) owners_[number].listener = listener;
}

void Buckets::set_rule(OperatorRule* rule) {
  for (int bucket = 0; bucket < store_->count(); ++bucket) {
    if (is_split(bucket)) owners_[bucket].rule = rule;
  }
}

void Buckets::give_memory(int bucket, void* data) const {
  zerorun::give_memory(is_split(bucket) ? local_storages_[bucket] : storages_[bucket], data);
}

void Buckets::take_memory(int bucket) const {
  zerorun::take_memory(is_split(bucket) ? local_storages_[bucket] : storages_[bucket]);
}

at::Tensor Buckets::local_view(const at::Tensor& tensor) const {
  at::Tensor local = marked_view(local_storages_[bucket_of(owner_of(tensor))], tensor.scalar_type(),
                                 tensor.sizes(), tensor.strides(), tensor.storage_offset());
  if (!local.is_inference())
    local.unsafeGetTensorImpl()->set_version_counter(tensor.unsafeGetTensorImpl()->version_counter());
  return local;
}

std::vector<int64_t> Buckets::whole_sizes(int parameter) const {
  std::vector<int64_t> sizes = shapes_[parameter].sizes;
  const auto& split = parameters_[parameter].split;
  if (split) sizes[static_cast<size_t>(split->dim)] = split->whole;
  return sizes;
}

int Buckets::parameter_of(const at::Tensor& tensor) const {
  return parameter_at(bucket_of(owner_of(tensor)), tensor.storage_offset());
}

const at::Tensor& Buckets::flat(int bucket) const {
  const StateTensor& state = values(bucket);
  ZR_CHECK(state.extent == Extent::bucket, label(bucket) + " comes and goes");
  return state.memory;
}

int Buckets::parameter_at(int bucket, int64_t offset) const {
  const std::vector<int>& members = store_->layout(bucket).parameters;
  auto after = std::upper_bound(members.begin(), members.end(), offset, [&](int64_t value, int parameter) {
    return value < location(parameter).offset;
  });
  return after == members.begin() ? members.front() : *(after - 1);
}

at::Tensor Buckets::view(int parameter, const at::Tensor& flat) const {
  const Shape& shape = shapes_[parameter];
  return flat.as_strided(shape.sizes, shape.strides, flat.storage_offset() + location(parameter).offset);
}

at::Tensor Buckets::piece(int parameter, const at::Tensor& flat) const {
  return run_of(flat, location(parameter).offset, shapes_[parameter].numel);
}

at::Tensor Buckets::flattened(int parameter, const at::Tensor& tensor) const {
  const Shape& shape = shapes_[parameter];
  bool same = tensor.numel() > 0;
  for (int64_t dim = 0; dim < tensor.dim(); ++dim) {
    same = same && (tensor.stride(dim) == shape.strides[dim] || tensor.size(dim) == 1);
  }
  if (same) return run_of(tensor, 0, shape.numel);
  at::Tensor copy = at::empty_strided(shape.sizes, shape.strides, tensor.options());
  return run_of(copy.copy_(tensor), 0, shape.numel);
}

void Buckets::clear_padding(int bucket, const at::Tensor& flat) const {
  int64_t end = 0;
  auto clear_until = [&](int64_t begin) {
    if (begin > end) device_->zero(run_of(flat, end, begin - end));
  };
  for (int index : store_->layout(bucket).parameters) {
    clear_until(location(index).offset);
    end = location(index).offset + shapes_[index].numel;
  }
  clear_until(store_->layout(bucket).numel);
}

at::Tensor Buckets::view_of_bucket(int parameter, const at::Tensor& flat) const {
  const Shape& shape = shapes_[parameter];
  if (!marked()) return view(parameter, flat);
  return marked_view(storages_[bucket_of(parameter)], scalar_type(dtype()), shape.sizes, shape.strides,
                     location(parameter).offset);
}

void Buckets::put_back(int parameter) const {
  const at::Tensor& tensor = parameters_[parameter].tensor;
  set_values(tensor, view_of_bucket(parameter, marked() ? at::Tensor() : flat(bucket_of(parameter))));
}

bool Buckets::in_place(int parameter) const {
  const at::Tensor& tensor = parameters_[parameter].tensor;
  const Shape& shape = shapes_[parameter];
  if (tensor.sizes() != shape.sizes || tensor.strides() != shape.strides) return false;
  if (shape.numel == 0) return true;
  const int bucket = bucket_of(parameter);
  const int64_t base = marked() ? 0 : flat(bucket).storage_offset();
  return tensor.storage().unsafeGetStorageImpl() == storages_[bucket].unsafeGetStorageImpl() &&
         tensor.storage_offset() == base + location(parameter).offset;
}

void Buckets::bump_versions() const {
  for (const auto& parameter : trained()) parameter.tensor.unsafeGetTensorImpl()->bump_version();
}

int64_t Buckets::numel() const {
  return numel_where([](int) { return true; });
}

int64_t Buckets::whole_numel() const {
  const auto whole = [&](bool is_shared) {
    return numel_where(
        [&](int bucket) { return !store_->layout(bucket).partitioned && shared(bucket) == is_shared; });
  };
  // A rank has 1/sharing of each, which is 1/ranks of those that are not whole and all of the others.
  const int64_t ranks = store_->world_size(), sharing = store_->ranks_sharing();
  return whole(false) + (ranks > sharing ? whole(true) * (ranks / sharing - 1) / (ranks - 1) : 0);
}

int64_t Buckets::numel_fetched() const {
  return numel_where([&](int bucket) { return shard_is_fetched(bucket); });
}

}  // namespace zerorun
