// Tests page-locked memory with a fake CUDA runtime. Needs no GPU.
#include "cuda/pinned_memory.h"

#include <ATen/ops/zeros.h>

#include <catch2/catch.hpp>
#include <thread>

#include "base/error.h"
#include "tests/cuda/fake_cuda.h"

namespace zerorun::testing {
namespace {

constexpr int64_t kMebi = int64_t{1} << 20;

void check_zero(const at::Tensor& memory) {
  CHECK(memory.equal(at::zeros_like(memory)));
}

}  // namespace

TEST_CASE("pinned memory: large memory is locked where it lies, and has nothing to be filled") {
  reset_fake_cuda();
  at::Tensor memory = pinned_memory(3 * kMebi + 1, at::kFloat, 0);
  CHECK(memory.numel() == 3 * kMebi + 1);
  CHECK(fake_cuda().host_allocations == 0);
  CHECK(fake_cuda().locked_bytes == static_cast<int64_t>(memory.nbytes()));
  check_zero(memory);
  memory.reset();
  CHECK(fake_cuda().locked_bytes == 0);
}

TEST_CASE("pinned memory: small memory is CUDA's own, filled with zeros") {
  reset_fake_cuda();
  for (const int64_t numel : {0, 1, 1000}) {
    const at::Tensor memory = pinned_memory(numel, at::kFloat, 0);
    CHECK(memory.numel() == numel);
    CHECK(fake_cuda().host_allocations == 1);
    check_zero(memory);
  }
  CHECK(fake_cuda().host_allocations == 0);
  CHECK(fake_cuda().locked_bytes == 0);
}

TEST_CASE("pinned memory: if CUDA refuses, the error says how much was wanted and for what") {
  reset_fake_cuda();
  fake_cuda().refuses_host_memory = true;
  CHECK_THROWS_WITH(pinned_memory(kMebi, at::kFloat, 0),
                    Catch::Contains("4194304 bytes") && Catch::Contains("checkpoints on their way"));
  CHECK_THROWS_WITH(pinned_memory(1000, at::kFloat, 0),
                    Catch::Contains("4000 bytes") && Catch::Contains("checkpoints on their way"));
  fake_cuda().refuses_host_memory = false;
}

TEST_CASE("pinned memory: a thread that has set no GPU may free it") {
  reset_fake_cuda();
  cudaSetDevice(1);
  at::Tensor memory = pinned_memory(kMebi, at::kFloat, 1);
  std::thread([&] { memory.reset(); }).join();
  CHECK(fake_cuda().locked_bytes == 0);
  CHECK_FALSE(fake_cuda().has_context[0]);
}

}  // namespace zerorun::testing
