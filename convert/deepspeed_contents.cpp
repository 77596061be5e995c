#include "convert/deepspeed_contents.h"

#include <algorithm>
#include <memory>
#include <span>

#include "base/error.h"

namespace zerorun::convert {
namespace {

std::vector<int64_t> contiguous_strides(const std::vector<int64_t>& shape) {
  std::vector<int64_t> strides(shape.size(), 1);
  for (size_t dim = shape.size(); dim-- > 1;)
    strides[dim - 1] = strides[dim] * std::max<int64_t>(1, shape[dim]);
  return strides;
}

}  // namespace

TorchFile* DeepSpeedContents::open(const std::filesystem::path& path) {
  result.files.push_back(std::make_unique<TorchFile>(*files, path));
  return result.files.back().get();
}

PickledField DeepSpeedContents::model() const {
  return root_of(*models.front());
}

SourceParameter& DeepSpeedContents::add_parameter(const std::string& name, const std::vector<int64_t>& shape,
                                                  const std::string& place) {
  numel_of(shape, place);
  SourceParameter parameter;
  parameter.facts.shape = shape;
  parameter.facts.strides = contiguous_strides(shape);
  const auto [added, is_new] = result.parameters.emplace(name, std::move(parameter));
  if (!is_new) throw UserError(place + ": the parameter appears twice");
  return added->second;
}

PickledField root_of(const TorchFile& file) {
  return {file.path().string() + ": ", file.root()};
}

SourceTensorPtr tensor_of(TorchFile* file, const PickledField& field) {
  const auto tensor = file->tensor(field.value, field.place);
  if (!tensor) throw UserError(field.place + ": expected a tensor");
  return std::make_shared<const SourceTensor>(SourceTensor{file, *tensor});
}

void add_state(SourceParameter& parameter, const std::string& state, const SourceTensorPtr& source,
               const std::string& place) {
  const checkpoint::SavedParameter& expected = parameter.facts;
  const TorchTensor& tensor = source->tensor;
  if (tensor.shape != expected.shape)
    throw UserError(place + ": " + state + " has another shape than the parameter");
  for (size_t dim = 0; tensor.numel > 0 && dim < tensor.shape.size(); ++dim) {
    if (tensor.shape[dim] != 1 && tensor.strides[dim] != expected.strides[dim])
      throw UserError(place + ": " + state +
                      " has another memory layout than the parameter: save both contiguous");
  }
  SourceState& added = parameter.states[state];
  added.dtype = tensor.dtype;
  added.pieces.assign(1, SourcePiece{source, 0, tensor.numel});
}

int64_t step_of(TorchFile* file, const PickledField& field) {
  const auto tensor = file->tensor(field.value, field.place);
  if (!tensor) return field.integer();
  if (tensor->numel != 1 || tensor->dtype != "F32")
    throw UserError(field.place + ": expected a number or a tensor of one float");
  float step = 0;
  file->read(*tensor, 0, std::as_writable_bytes(std::span(&step, 1)));
  constexpr float kMost = 9e18F;
  if (!(step >= 0 && step < kMost)) throw UserError(field.place + ": expected a number of steps");
  return static_cast<int64_t>(step);
}

int zero_stage_of(const PickledField& facts) {
  const PickledField field = facts.need("zero_stage");
  const int64_t stage = field.integer();
  if (stage >= 1 && stage <= 3) return static_cast<int>(stage);
  throw UserError(field.place + ": " + std::to_string(stage) + ", expected 1, 2 or 3");
}

int64_t numel_of(const std::vector<int64_t>& shape, const std::string& place) {
  int64_t numel = 1;
  int64_t strides = 1;  // product of the nonzero sizes, which must not overflow even if numel is 0
  for (const int64_t size : shape) {
    if (size < 0 || __builtin_mul_overflow(strides, std::max<int64_t>(1, size), &strides))
      throw UserError(place + ": damaged: a shape of more than 2^63 elements");
    numel *= size;
  }
  return numel;
}

NumberedFields::NumberedFields(const PickledField& dict) : place_(dict.place) {
  if (!dict.value.is(PickleKind::dict)) throw UserError(place_ + ": expected a dict");
  for (size_t index = 0; index + 1 < dict.value.size(); index += 2) {
    const int64_t key = PickledField{place_, dict.value.item(index)}.integer();
    fields_.insert_or_assign(
        key, PickledField{place_ + "[" + std::to_string(key) + "]", dict.value.item(index + 1)});
  }
}

const PickledField& NumberedFields::at(size_t key) const {
  const auto found = fields_.find(static_cast<int64_t>(key));
  if (found == fields_.end()) throw UserError(place_ + ": no entry " + std::to_string(key));
  return found->second;
}

}  // namespace zerorun::convert
