#include "activations/kept_inputs.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/from_blob.h>
#include <ATen/ops/zeros.h>

#include <algorithm>
#include <utility>

#include "base/error.h"

namespace zerorun {
namespace {

// An activation whose elements lie in memory one after the other, in whatever order. Parameters have their
// own memory in any case.
bool is_activation(const at::Tensor& input) {
  return input.layout() == at::kStrided && input.is_floating_point() &&
         input.is_non_overlapping_and_dense() && !input.is_neg() &&
         !(input.is_leaf() && input.requires_grad());
}

// The elements in the order of memory.
at::Tensor flat(const at::Tensor& input) {
  return input.detach().as_strided({input.numel()}, {1});
}

at::Tensor part_of(const at::Tensor& input, const Communicator& ranks) {
  const int64_t length = (input.numel() + ranks.world_size() - 1) / ranks.world_size();
  const int64_t begin = std::min(length * ranks.rank(), input.numel());
  const int64_t end = std::min(begin + length, input.numel());
  at::Tensor part = at::zeros({length}, input.options());
  part.narrow(0, 0, end - begin).copy_(flat(input).narrow(0, begin, end - begin));
  return part;
}

at::Tensor copy_on_host(const at::Tensor& tensor) {
  at::Tensor copy = at::empty({tensor.numel()}, tensor.options().device(c10::kCPU).pinned_memory(true));
  return copy.copy_(tensor, /*non_blocking=*/true);
}

}  // namespace

KeptInput::KeptInput(const at::Tensor& input, const InputHome& home, const std::string& label)
    : saved_(input),
      sizes_(input.sizes().vec()),
      strides_(input.layout() == at::kStrided ? input.strides().vec() : std::vector<int64_t>()),
      device_(input.device()),
      dtype_(input.scalar_type()),
      requires_grad_(input.requires_grad()) {
  if (!is_activation(input)) return;
  if (home.tensor_ranks && home.tensor_ranks->world_size() > 1 && input.numel() > 0) {
    ranks_ = home.tensor_ranks;
    saved_ = part_of(input, *ranks_);
    is_moved_ = true;
  }
  // A leaf, such as a mask, is in memory in any case, and may be an input of every block.
  if (home.file && !input.is_leaf() && static_cast<int64_t>(saved_.nbytes()) >= kSmallestInFile) {
    file_ = home.file;
    move_to_file(label);
    is_moved_ = true;
  } else if (home.on_host && input.is_cuda()) {
    saved_ = copy_on_host(flat(saved_));
    is_moved_ = true;
  } else if (home.buffer && !input.is_leaf() && input.numel() > 0) {
    saved_ = home.buffer->copy(flat(saved_));
    is_moved_ = true;
  }
}

void KeptInput::move_to_file(const std::string& label) {
  numel_ = saved_.numel();
  const auto fill = [&](std::byte* memory) { at::from_blob(memory, {numel_}, dtype_).copy_(flat(saved_)); };
  block_ = file_->put(static_cast<int64_t>(saved_.nbytes()), fill, label);
  const auto drop = [file = file_, block = block_](void*) { file->drop(block); };
  saved_ = at::from_blob(file_.get(), {0}, drop, at::kByte);
}

// The block's elements, in memory that the file gets back with the tensor.
at::Tensor KeptInput::read() const {
  std::byte* memory = file_->get(block_);
  if (memory == nullptr) return at::empty({numel_}, at::TensorOptions(dtype_).device(device_));  // a plan
  const auto give_back = [file = file_](void* lent) { file->give_back(static_cast<std::byte*>(lent)); };
  return at::from_blob(memory, {numel_}, give_back, dtype_);
}

at::Tensor KeptInput::restored(const at::Tensor& saved, const std::string& label) const {
  at::Tensor input = file_ ? read() : saved.detach();
  if (is_moved_) {
    input = input.to(device_, /*non_blocking=*/file_ == nullptr);  // the file gets its memory back at once
    if (ranks_) {
      at::Tensor whole = at::empty({input.numel() * ranks_->world_size()}, input.options());
      ranks_->all_gather(whole, input, label)->wait();
      int64_t numel = 1;
      for (const int64_t size : sizes_) numel *= size;
      input = whole.narrow(0, 0, numel);
    }
    input = input.as_strided(sizes_, strides_);
  }
  return input.requires_grad_(requires_grad_);
}

int64_t KeptInput::bytes_in_file() const {
  return file_ ? numel_ * static_cast<int64_t>(c10::elementSize(dtype_)) : 0;
}

std::vector<at::Tensor> KeptInputs::keep(const std::vector<at::Tensor>& inputs, const InputHome& home,
                                         const std::string& block, bool with_whole) {
  block_ = "block " + block;
  const std::string label = "an input of " + block_;
  std::vector<at::Tensor> saved, whole;
  for (const at::Tensor& input : inputs) {
    std::optional<KeptInput>& kept = inputs_.emplace_back();
    if (!input.defined()) continue;
    kept.emplace(input, home, label);
    saved.push_back(kept->saved());
    if (kept->is_part()) whole.push_back(input);
  }
  has_whole_ = !whole.empty() && with_whole;
  if (has_whole_) saved.insert(saved.end(), whole.begin(), whole.end());
  return saved;
}

// From the last one to the first, as a file reads them ahead.
std::vector<at::Tensor> KeptInputs::restore(const std::vector<at::Tensor>& saved) const {
  const std::string label = "an input of " + block_;
  std::vector<at::Tensor> inputs(inputs_.size());
  auto next = saved.begin() + std::ranges::count_if(inputs_, [](const std::optional<KeptInput>& kept) {
                return kept.has_value();
              });
  auto whole = saved.end();
  for (size_t index = inputs_.size(); index-- > 0;) {
    const std::optional<KeptInput>& kept = inputs_[index];
    if (!kept) continue;
    inputs[index] = kept->restored(*--next, label);
    if (has_whole_ && kept->is_part()) check_same(inputs[index], *--whole, index + 1);
  }
  return inputs;
}

void KeptInputs::check_same(const at::Tensor& joined, const at::Tensor& whole, size_t number) const {
  // Bit by bit, so that a value that is not a number equals itself.
  if (at::equal(joined.reshape({-1}).view(at::kByte), whole.reshape({-1}).view(at::kByte))) return;
  throw UserError(
      "activation_checkpointing.partition_activations: tensor ranks give " + block_ +
      " different values as input " + std::to_string(number) +
      ", so that it cannot be joined from their parts: mark a block whose inputs are equal on all "
      "tensor ranks, or set the key to false");
}

int64_t KeptInputs::bytes_in_file() const {
  int64_t bytes = 0;
  for (const std::optional<KeptInput>& kept : inputs_) bytes += kept ? kept->bytes_in_file() : 0;
  return bytes;
}

}  // namespace zerorun
