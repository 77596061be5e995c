#include "activations/kept_inputs.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/from_blob.h>
#include <ATen/ops/zeros.h>

#include <algorithm>
#include <utility>

namespace zerorun {
namespace {

// An activation that the block reads as it is. Parameters have their own memory in any case.
bool is_activation(const at::Tensor& input) {
  return input.layout() == at::kStrided && input.is_floating_point() && input.is_contiguous() &&
         !(input.is_leaf() && input.requires_grad());
}

at::Tensor part_of(const at::Tensor& input, const Communicator& ranks) {
  const int64_t length = (input.numel() + ranks.world_size() - 1) / ranks.world_size();
  const int64_t begin = std::min(length * ranks.rank(), input.numel());
  const int64_t end = std::min(begin + length, input.numel());
  at::Tensor part = at::zeros({length}, input.options());
  part.narrow(0, 0, end - begin).copy_(input.view(-1).narrow(0, begin, end - begin));
  return part;
}

at::Tensor copy_on_host(const at::Tensor& tensor) {
  at::Tensor copy = at::empty(tensor.sizes(), tensor.options().device(c10::kCPU).pinned_memory(true));
  return copy.copy_(tensor, /*non_blocking=*/true);
}

}  // namespace

KeptInput::KeptInput(const at::Tensor& input, const InputHome& home, const std::string& label)
    : saved_(input),
      sizes_(input.sizes().vec()),
      device_(input.device()),
      dtype_(input.scalar_type()),
      requires_grad_(input.requires_grad()) {
  if (!is_activation(input)) return;
  if (home.tensor_ranks && home.tensor_ranks->world_size() > 1 && input.numel() > 0) {
    ranks_ = home.tensor_ranks;
    saved_ = part_of(input.detach(), *ranks_);
    is_moved_ = true;
  }
  if (home.file && static_cast<int64_t>(saved_.nbytes()) >= kSmallestInFile) {
    file_ = home.file;
    move_to_file(label);
    is_moved_ = true;
  } else if (home.on_host && input.is_cuda()) {
    saved_ = copy_on_host(saved_.detach());
    is_moved_ = true;
  }
}

void KeptInput::move_to_file(const std::string& label) {
  numel_ = saved_.numel();
  const auto fill = [&](std::byte* memory) {
    at::from_blob(memory, {numel_}, dtype_).copy_(saved_.detach().view(-1));
  };
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
    input = input.to(device_, /*non_blocking=*/true);
    if (ranks_) {
      at::Tensor whole = at::empty({input.numel() * ranks_->world_size()}, input.options());
      ranks_->all_gather(whole, input, label)->wait();
      int64_t numel = 1;
      for (const int64_t size : sizes_) numel *= size;
      input = whole.narrow(0, 0, numel);
    }
    input = input.view(sizes_);
  }
  return input.requires_grad_(requires_grad_);
}

}  // namespace zerorun
