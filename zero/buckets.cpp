#include "zero/buckets.h"

#include <ATen/ops/as_strided.h>
#include <c10/core/GradMode.h>

#include <cstring>
#include <utility>

#include "base/error.h"

namespace zerorun {
namespace {

std::string make_label(int bucket, const BucketLayout& layout,
                       const std::vector<NamedParameter>& parameters) {
  std::string label = "bucket " + std::to_string(bucket) + " (" + parameters[layout.parameters.front()].name;
  const size_t more = layout.parameters.size() - 1;
  if (more > 0) label += " and " + std::to_string(more) + " more";
  return label + ")";
}

}  // namespace

Buckets::Buckets(std::vector<NamedParameter> parameters, Layout layout, Communicator& communicator)
    : parameters_(std::move(parameters)), layout_(std::move(layout)) {
  c10::NoGradGuard no_grad;
  for (const auto& [name, tensor, group] : parameters_) {
    shapes_.push_back({tensor.sizes().vec(), tensor.strides().vec(), tensor.numel()});
  }
  for (int bucket = 0; bucket < static_cast<int>(layout_.buckets.size()); ++bucket) {
    const BucketLayout& bucket_layout = layout_.buckets[bucket];
    flats_.push_back(communicator.allocate(bucket_layout.numel, at::kFloat));
    labels_.push_back(make_label(bucket, bucket_layout, parameters_));
    for (int index : bucket_layout.parameters) {
      at::Tensor& parameter = parameters_[index].tensor;
      at::Tensor place = view(index, flats_[bucket]);
      place.copy_(parameter);
      parameter.set_data(place);
    }
  }
}

at::Tensor Buckets::slice(int bucket, const at::Tensor& flat, int rank) const {
  const int64_t numel = layout(bucket).slice_numel;
  return flat.narrow(0, rank * numel, numel);
}

at::Tensor Buckets::view(int parameter, const at::Tensor& flat) const {
  const Shape& shape = shapes_[parameter];
  return flat.as_strided(shape.sizes, shape.strides,
                         flat.storage_offset() + layout_.placements[parameter].offset);
}

void Buckets::clear_padding(int bucket, at::Tensor& flat) const {
  float* data = flat.mutable_data_ptr<float>();
  int64_t end = 0;
  auto clear_until = [&](int64_t begin) { std::memset(data + end, 0, (begin - end) * sizeof(float)); };
  for (int index : layout(bucket).parameters) {
    clear_until(layout_.placements[index].offset);
    end = layout_.placements[index].offset + shapes_[index].numel;
  }
  clear_until(layout(bucket).numel);
}

bool Buckets::in_place(int parameter) const {
  const at::Tensor& tensor = parameters_[parameter].tensor;
  const Shape& shape = shapes_[parameter];
  if (tensor.sizes() != shape.sizes || tensor.strides() != shape.strides) return false;
  if (shape.numel == 0) return true;
  const at::Tensor& flat = flats_[bucket_of(parameter)];
  return tensor.storage().is_alias_of(flat.storage()) &&
         tensor.storage_offset() == flat.storage_offset() + layout_.placements[parameter].offset;
}

void Buckets::bump_versions() const {
  for (const auto& parameter : parameters_) parameter.tensor.unsafeGetTensorImpl()->bump_version();
}

int64_t Buckets::numel() const {
  int64_t total = 0;
  for (const Shape& shape : shapes_) total += shape.numel;
  return total;
}

int64_t Buckets::bytes() const {
  int64_t total = 0;
  for (const auto& flat : flats_) total += static_cast<int64_t>(flat.nbytes());
  return total;
}

}  // namespace zerorun
