// The part of Buckets that moves parameters in: memory, initial values, and what this rank keeps of them.
#include <algorithm>
#include <limits>
#include <utility>

#include "base/error.h"
#include "base/memory_report.h"
#include "device/dtypes.h"
#include "device/zeroed_memory.h"
#include "zero/buckets.h"
#include "zero/deferred_init.h"
#include "zero/node_pointer.h"

namespace zerorun {
namespace {

// Returns memory for one broadcast of initial values. On a GPU a communicator registers its memory, which
// takes longer than one collective gains; on CPUs its memory is shared, which saves copies.
at::Tensor allocate_for_one_use(Communicator& communicator, int64_t numel, Dtype dtype) {
  Device& device = communicator.device();
  return device.streams().asynchronous() ? device.allocate(numel, scalar_type(dtype))
                                         : communicator.allocate(numel, scalar_type(dtype));
}

}  // namespace

at::Tensor Buckets::allocate_values(int bucket) {
  const int64_t numel = store_->layout(bucket).numel;
  const AllocatingFor scope(MemoryUse::parameters, numel * size_of(dtype()));
  if (marked() && options_.shared) {
    const bool in_files = store_->has_values_in_files(bucket);
    const at::Tensor values = in_files ? shared_gathers_->make_buffer(bucket, numel, scalar_type(dtype()))
                                       : communicator_->allocate_shared(numel, scalar_type(dtype()));
    shared_[bucket] = !in_files && values.defined();
    if (values.defined()) return values;
  }
  return store_->layout(bucket).partitioned ? allocate_for_one_use(*communicator_, numel, dtype())
                                            : communicator_->allocate(numel, scalar_type(dtype()));
}

// Moves the bucket's parameters into new memory, `flat`. If master weights start from the unrounded fp32
// values, the local tensor `exact` holds these values; otherwise `exact` is `flat`.
void Buckets::move_in(int bucket) {
  const BucketLayout& bucket_layout = store_->layout(bucket);
  const AllocatingFor scope(MemoryUse::parameters);
  ZR_CHECK(marked() || !bucket_layout.partitioned, "partitioned buckets are marked");
  at::Tensor flat = allocate_values(bucket);
  const bool wants_exact = options_.master_from_fp32 && masters_.has(bucket) && masters_.are_rounded();
  const at::Tensor exact =
      wants_exact ? allocate_for_one_use(*communicator_, bucket_layout.numel, Dtype::fp32) : flat;
  const std::string message = message_without_memory(bucket);
  Communicator* const replicas = rank_ == 0 ? options_.replicas : nullptr;
  const bool gives = rank_ == 0 && (!replicas || replicas->rank() == 0);
  storages_.push_back(marked() ? make_owned_storage(owners_[bucket], static_cast<int64_t>(flat.nbytes()),
                                                    flat.device(), message)
                               : flat.storage());
  local_storages_.emplace_back();
  if (is_split(bucket)) {
    local_storages_.back() = make_owned_storage(owners_[store_->count() + bucket],
                                                static_cast<int64_t>(flat.nbytes()), flat.device(), message);
  }
  for (int index : bucket_layout.parameters) {
    at::Tensor& parameter = parameters_[index].tensor;
    if (gives) {
      at::Tensor place = view(index, exact);
      // After a failure rank 0 goes on, because the other ranks wait for its broadcasts.
      Failure failure = failure_of([&] { fill(index, place); });
      if (failure) place.fill_(std::numeric_limits<double>::quiet_NaN());
      if (!unfilled_) unfilled_ = std::move(failure);
    } else if (owner_of(parameter) && !is_deferred(parameter)) {
      parameter.detach().clone();  // another engine gathers it, for which rank 0 needs all ranks
    }
    set_values(parameter, view_of_bucket(index, flat));
    // A graph from before may keep the node that takes gradients of the whole parameter's sizes.
    if (parameters_[index].split && parameter.requires_grad()) set_grad_accumulator(parameter, NodePointer());
  }
  const std::string label = "initial values of " + labels_[bucket];
  if (replicas) replicas->broadcast(exact, 0, label)->wait();
  communicator_->broadcast(exact, 0, label)->wait();
  if (wants_exact && (shared(bucket) || gathers_once(bucket))) {
    at::Tensor own = store_->slice_of(bucket, flat, rank_);
    own.copy_(store_->slice_of(bucket, exact, rank_));
    communicator_->all_gather(flat, own, "rounded values of " + labels_[bucket])->wait();
  } else if (wants_exact) {
    flat.copy_(exact);
  }
  keep(bucket, std::move(flat), exact);
}

void Buckets::fill(int parameter, at::Tensor place) {
  const NamedParameter& given = parameters_[parameter];
  const Failure failure = failure_of([&] {
    if (!options_.tensor) {
      make_given_values(parameter, place);
    } else {
      fill_for_tensor_ranks(parameter, place);
    }
  });
  if (given.tied) {
    at::Tensor values = place.as_strided({place.numel()}, {1}, place.storage_offset());
    given.tied->broadcast(values, 0, "initial values of " + given.name)->wait();
  }
  failure.raise();
}

// All tensor ranks get the values of the first one, so that their own random generators do not matter.
void Buckets::fill_for_tensor_ranks(int parameter, at::Tensor place) {
  const NamedParameter& given = parameters_[parameter];
  at::Tensor whole = place;
  if (given.split) {
    whole = zeroed_memory(given.tensor.numel(), place.scalar_type())
                .as_strided(given.tensor.sizes(), given.tensor.strides())
                .to(place.device());
  }
  Communicator& tensor_ranks = *options_.tensor;
  Failure failure;
  if (tensor_ranks.rank() == 0) failure = failure_of([&] { make_given_values(parameter, whole); });
  at::Tensor values = whole.as_strided({given.tensor.numel()}, {1}, whole.storage_offset());
  tensor_ranks.broadcast(values, 0, "initial values of " + given.name)->wait();
  if (given.split) copy_part(place, whole, *given.split, tensor_ranks.rank());
  failure.raise();
}

void Buckets::make_given_values(int parameter, at::Tensor place) const try {
  const at::Tensor& tensor = parameters_[parameter].tensor;
  if (place.is_meta()) return;  // a plan
  if (!is_deferred(tensor)) {
    place.copy_(tensor);
  } else if (tensor.scalar_type() == place.scalar_type() && place.is_cpu()) {
    make_values(tensor, place);
  } else {
    at::Tensor given =
        zeroed_memory(tensor.numel(), tensor.scalar_type()).as_strided(tensor.sizes(), tensor.strides());
    make_values(tensor, given);
    place.copy_(given);
  }
} catch (const UserError& error) {
  throw UserError("the values of parameter " + parameters_[parameter].name + ": " + error.what());
}

// Puts the values and master weights that this rank keeps into the store.
void Buckets::keep(int bucket, at::Tensor flat, const at::Tensor& exact) {
  masters_.keep(bucket, exact);
  if (kind(bucket).comes_and_goes()) {
    const at::Tensor own = store_->slice_of(bucket, flat, rank_);
    if (store_->has_values_in_files(bucket)) {
      store_->with_values(bucket, ValueUse::overwrite, [&] { at::Tensor(shard(bucket)).copy_(own); });
      if (shared_gathers_) shared_gathers_->give_back_pages();
      return;
    }
    const bool on_host = options_.shards_on_host;
    const AllocatingFor scope(on_host ? MemoryUse::on_host : MemoryUse::parameters,
                              static_cast<int64_t>(own.nbytes()));
    at::Tensor shard = on_host ? device_->allocate_on_host(own.numel(), flat.scalar_type())
                               : communicator_->allocate(own.numel(), flat.scalar_type());
    store_->put(bucket, StateKind::value, kValue, Extent::slice, shard.copy_(own),
                on_host ? Home::host : Home::device);
    return;
  }
  if (marked() && !shared(bucket)) give_memory(bucket, flat.mutable_data_ptr());
  store_->put(bucket, StateKind::value, kValue, Extent::bucket, std::move(flat),
              shared(bucket) ? Home::shared : Home::device);
}

}  // namespace zerorun
