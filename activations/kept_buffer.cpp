#include "activations/kept_buffer.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/from_blob.h>

#include <algorithm>
#include <mutex>
#include <utility>
#include <vector>

namespace zerorun {
namespace {

constexpr int64_t kAlignment = 256;

}  // namespace

struct KeptBuffer::State {
  std::mutex mutex;
  std::optional<int64_t> blocks;
  at::Tensor memory;  // undefined until it is known how large it is
  int64_t block_bytes = 0;
  std::vector<int64_t> free = {};   // places of blocks
  int64_t kept = 0, most_kept = 0;  // copies, now and at a time

  void allocate(c10::Device device) {
    memory = at::empty({*blocks * block_bytes}, at::TensorOptions(at::kByte).device(device));
    free.reserve(static_cast<size_t>(*blocks));
    for (int64_t block = *blocks; block-- > 0;) free.push_back(block);
  }
  // The place of a block for `like`; absent: there is none.
  std::optional<int64_t> take(const at::Tensor& like) {
    const std::lock_guard lock(mutex);
    const auto bytes = static_cast<int64_t>(like.nbytes() + kAlignment - 1) / kAlignment * kAlignment;
    most_kept = std::max(most_kept, ++kept);
    if (!memory.defined()) {
      block_bytes = std::max(block_bytes, bytes);
      if (blocks) allocate(like.device());
    }
    if (free.empty() || bytes > block_bytes || memory.device() != like.device()) return std::nullopt;
    const int64_t block = free.back();
    free.pop_back();
    return block;
  }
  // Called when a tensor is destroyed, so it allocates nothing: the next take() does.
  void give_back(std::optional<int64_t> block) {
    const std::lock_guard lock(mutex);
    if (block) free.push_back(*block);
    if (--kept == 0 && !blocks) blocks = most_kept;
  }
};

KeptBuffer::KeptBuffer(std::optional<int64_t> blocks) : state_(std::make_shared<State>()) {
  state_->blocks = blocks;
}

at::Tensor KeptBuffer::copy(const at::Tensor& flat) {
  if (flat.is_meta()) return at::empty_like(flat).copy_(flat);  // a plan
  const std::optional<int64_t> block = state_->take(flat);
  at::Tensor own = block ? at::Tensor() : at::empty_like(flat);
  void* data = block ? static_cast<std::byte*>(state_->memory.data_ptr()) + *block * state_->block_bytes
                     : own.data_ptr();
  const auto give_back = [state = state_, block, own](void*) { state->give_back(block); };
  return at::from_blob(data, {flat.numel()}, give_back, flat.options()).copy_(flat);
}

}  // namespace zerorun
