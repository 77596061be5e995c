// Tests how much memory parameters take under DeferredInit, until their values are made and after it.
#include <c10/core/CPUAllocator.h>
#include <torch/torch.h>

#include <algorithm>
#include <catch2/catch.hpp>
#include <memory>
#include <vector>

#include "zero/deferred_init.h"

namespace zerorun {
namespace {

// Counts the bytes that LibTorch allocates from its CPU allocator.
class CountingAllocator final : public c10::Allocator {
 public:
  CountingAllocator() : inner_(c10::GetCPUAllocator()) { c10::SetCPUAllocator(this, /*priority=*/255); }
  ~CountingAllocator() override { c10::SetCPUAllocator(inner_, 255); }

  c10::DataPtr allocate(size_t bytes) override {
    auto block = std::make_unique<Block>(Block{this, bytes, inner_->allocate(bytes)});
    now_ += static_cast<int64_t>(bytes);
    peak_ = std::max(peak_, now_);
    void* data = block->memory.get();
    return {data, block.release(), &free_block, c10::DeviceType::CPU};
  }
  void copy_data(void* to, const void* from, size_t bytes) const override {
    default_copy_data(to, from, bytes);
  }

  int64_t now() const { return now_; }
  int64_t peak() const { return peak_; }
  void restart_peak() { peak_ = now_; }

 private:
  struct Block {
    CountingAllocator* counter;
    size_t bytes;
    c10::DataPtr memory;
  };
  static void free_block(void* context) {
    const std::unique_ptr<Block> block(static_cast<Block*>(context));
    block->counter->now_ -= static_cast<int64_t>(block->bytes);
  }

  c10::Allocator* inner_;
  int64_t now_ = 0;
  int64_t peak_ = 0;
};

}  // namespace

TEST_CASE("Parameters take no memory until they are made, and then one at a time") {
  constexpr int64_t kWidth = 1600;
  constexpr int64_t kWeight = kWidth * kWidth * 4;  // bytes: 10 MB; the model's 40 weights have 400 MB
  constexpr int64_t kSlack = 1 << 20;               // for generator states and similar
  CountingAllocator memory;
  {
    std::vector<at::Tensor> weights;
    {
      DeferredInit deferred;
      for (int layer = 0; layer < 20; ++layer) {
        torch::nn::Linear linear(torch::nn::LinearOptions(kWidth, kWidth).bias(false));
        weights.push_back(linear->weight);
        weights.push_back(torch::randn({kWidth, kWidth}) * 0.02);
      }
    }
    CHECK(memory.peak() < kWeight + kSlack);
    CHECK(memory.peak() >= kWeight);  // proves that the allocator counts
    CHECK(memory.now() < kSlack);
    at::Tensor place = torch::zeros({kWidth, kWidth});
    memory.restart_peak();
    make_values(weights[0], place);  // empty() and uniform_() write directly into `place`
    CHECK(memory.peak() < kWeight + kSlack);
    for (auto weight = weights.rbegin(); weight != weights.rend(); ++weight) make_values(*weight, place);
    CHECK(memory.peak() < 2 * kWeight + kSlack);
  }
  CHECK(memory.now() == 0);  // the tape was freed with its last tensor
}

}  // namespace zerorun
