// Compares the CUDA kernels on a GPU with the CPU's kernels.
#include <ATen/Context.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/zeros.h>
#include <c10/cuda/CUDAFunctions.h>

#include <catch2/catch.hpp>
#include <cstring>
#include <vector>

#include "base/error.h"
#include "base/narrow_floats.h"
#include "cuda/cuda_check.h"
#include "cuda/cuda_device.h"
#include "cuda/kernel_bodies.h"
#include "device/step_facts.h"
#include "tests/cuda/body_device.h"
#include "tests/cuda/kernel_cases.h"

namespace zerorun::testing {
namespace {

const Sizes kSizes = {0, 1, 3, 8, 9, 31, 257, 2003};
const Sizes kLarge = {(int64_t{1} << 22) + 3};

// Number of float32 bit patterns that are tested at a time.
constexpr int64_t kPatterns = int64_t{1} << 24;

at::Tensor patterns(int64_t begin) {
  at::Tensor values = at::empty({kPatterns});
  auto* bits = static_cast<uint32_t*>(values.mutable_data_ptr());
  for (int64_t i = 0; i < kPatterns; ++i) bits[i] = static_cast<uint32_t>(begin + i);
  return values;
}

}  // namespace

TEST_CASE("cuda kernels: copies and sums have the CPU's bits") {
  CudaDevice device(0);
  check_copies(device, kSizes);
  check_copies(device, kLarge);
}

TEST_CASE("cuda kernels: every float32 is rounded to the CPU's bits") {
  CudaDevice device(0);
  for (at::ScalarType dtype : {at::kBFloat16, at::kHalf}) {
    const at::Tensor rounded = device.allocate(kPatterns, dtype);
    const at::Tensor wanted = at::empty({kPatterns}, dtype);
    for (int64_t begin = 0; begin < int64_t{1} << 32; begin += kPatterns) {
      const at::Tensor values = patterns(begin);
      device.copy_scaled(rounded, put(device, values), 1);
      narrow(values.const_data_ptr<float>(), wanted.mutable_data_ptr(),
             dtype == at::kHalf ? Dtype::fp16 : Dtype::bf16, kPatterns);
      INFO(dtype << ", patterns from " << begin << " on");
      const at::Tensor found = get(device, rounded);
      const bool equal = std::memcmp(found.const_data_ptr(), wanted.const_data_ptr(), found.nbytes()) == 0;
      REQUIRE((equal || same_bits(found, wanted)));  // same_bits() accepts any bits of a NaN
    }
  }
}

TEST_CASE("cuda kernels: values that are not finite are reported as on the CPU") {
  CudaDevice device(0);
  check_findings(device);
}

TEST_CASE("cuda kernels: in a gradient in which all values are NaN the first element is reported") {
  CudaDevice device(0);
  const int64_t numel = int64_t{1} << 24;
  const at::Tensor values = device.allocate(numel, at::kFloat);
  ZR_CUDA(cudaMemset(values.mutable_data_ptr(), 0xff, values.nbytes()));
  const at::Tensor tally = new_tally(device);
  device.add_squares(tally, values, 11, 1);
  device.copy_scaled(values, values, 1, {tally, 21});
  CHECK(number_in(read_tally(device, tally).sum) == 11);
  CHECK(number_in(read_tally(device, tally).gradient) == 21);
}

TEST_CASE("cuda kernels: sums of squares are the CPU's to 12 digits, wherever values lie") {
  CudaDevice device(0);
  check_squares(device, {0, 1, 7, 8, 9, 2047, 2048, 2049, 300001, 4 * 8 * 256 * 1024 + 12345});
}

// The kernel's body fixes the order of addition, so not even the last digit may differ.
TEST_CASE("cuda kernels: sums of squares have the bits of the kernel's body run on the host") {
  CudaDevice device(0);
  BodyDevice bodies(1);
  for (at::ScalarType dtype : {at::kFloat, at::kBFloat16, at::kHalf}) {
    for (const int64_t numel : {1, 7, 8, 2047, 2049, 300001, 4 * 8 * 256 * 1024 + 12345}) {
      for (const int64_t offset : {0, 3}) {
        INFO(numel << " values of " << dtype << " from " << offset << " on");
        const at::Tensor values = random_values(numel, dtype, 5);
        const at::Tensor found = new_tally(device);
        device.add_squares(found, put(device, values, offset), 1, 1);
        const at::Tensor wanted = new_tally(bodies);
        bodies.add_squares(wanted, put(bodies, values, offset), 1, 1);
        CHECK(read_tally(device, found).squares == read_tally(bodies, wanted).squares);
        CHECK(read_tally(device, found).sum == read_tally(bodies, wanted).sum);
      }
    }
  }
}

TEST_CASE("cuda kernels: sums of squares are the same in every run, in any number of blocks") {
  CudaDevice device(0);
  const at::Tensor values = put(device, random_values(20'000'003, at::kFloat, 9));
  const at::Tensor scratch = device.allocate(sizeof(cuda::SquaresScratch), at::kByte);
  std::vector<double> sums;
  for (const int64_t blocks : {1, 2, 7, 132, 1023, 1024, 100000, 1024, 1024, 1024}) {
    const at::Tensor tally = new_tally(device);
    const cudaStream_t stream = device.streams().handle(device.streams().current());
    ZR_CUDA(cuda::add_squares({stream, blocks}, static_cast<Tally*>(tally.mutable_data_ptr()),
                              static_cast<cuda::SquaresScratch*>(scratch.mutable_data_ptr()),
                              {values.const_data_ptr(), Dtype::fp32}, values.numel(), 1, 1));
    sums.push_back(read_tally(device, tally).squares);
  }
  CHECK(sums == std::vector<double>(sums.size(), sums[0]));
}

TEST_CASE("cuda kernels: sums of squares on several streams at once do not disturb each other") {
  CudaDevice device(0);
  const at::Tensor values = put(device, random_values(5'000'000, at::kFloat, 9));
  const at::Tensor alone = new_tally(device);
  device.add_squares(alone, values, 1, 1);
  const double wanted = read_tally(device, alone).squares;
  std::vector<at::Tensor> tallies;
  for (int i = 0; i < 60; ++i) tallies.push_back(new_tally(device));
  for (size_t i = 0; i < tallies.size(); ++i) {
    const StreamScope scope(device.streams(), static_cast<Lane>(i % kStreamLanes));
    device.add_squares(tallies[i], values, 1, 1);
  }
  ZR_CUDA(cudaDeviceSynchronize());
  for (const at::Tensor& tally : tallies) CHECK(read_tally(device, tally).squares == wanted);
}

TEST_CASE("cuda kernels: updates have the CPU's bits") {
  CudaDevice device(0);
  check_updates(device, kSizes);
  check_updates(device, kLarge);
}

TEST_CASE("cuda kernels: updates of bfloat16 state have the CPU's bits") {
  CudaDevice device(0);
  check_narrow_updates(device, kSizes);
  check_narrow_updates(device, kLarge);
  check_coded_updates(device, kSizes);
  check_coded_updates(device, kLarge);
}

TEST_CASE("cuda kernels: master weights follow what was written") {
  CudaDevice device(0);
  check_following(device, kSizes);
  check_following(device, kLarge);
}

TEST_CASE("cuda kernels: publish() and decide() give the CPU's bits") {
  CudaDevice device(0);
  check_step_facts(device);
  check_decisions(device);
}

TEST_CASE("cuda device: new memory is zero and aligned, on the GPU and pinned on the host") {
  CudaDevice device(0);
  const at::Tensor memory = device.allocate(1001, at::kFloat);
  CHECK(memory.device() == device.location());
  CHECK(reinterpret_cast<uintptr_t>(memory.const_data_ptr()) % device.alignment() == 0);
  CHECK(same_bits(get(device, memory), at::zeros({1001})));
  const at::Tensor host = device.allocate_on_host(1001, at::kFloat);
  CHECK(host.device() == c10::kCPU);
  CHECK(host.is_pinned());
  CHECK(same_bits(host, at::zeros({1001})));
  CHECK(device.allocate(0, at::kHalf).numel() == 0);
}

TEST_CASE("cuda device: zero() changes only the given elements") {
  CudaDevice device(0);
  const at::Tensor values = put(device, random_values(1000, at::kHalf, 1), 3);
  device.zero(values.slice(0, 1, 999));
  const at::Tensor found = get(device, values);
  CHECK(same_bits(found.slice(0, 1, 999).contiguous(), at::zeros({998}, at::kHalf)));
  CHECK(same_bits(found.slice(0, 0, 1).contiguous(),
                  random_values(1000, at::kHalf, 1).slice(0, 0, 1).contiguous()));
}

// A gather takes such memory before it waits for the last readers of what was there.
TEST_CASE("cuda device: memory for one stream is not written, even in LibTorch's deterministic mode") {
  CudaDevice device(0);
  at::globalContext().setDeterministicAlgorithms(true, /*warn_only=*/false);
  device.allocate_on_stream(1001, at::kFloat).fill_(3);
  const at::Tensor again = device.allocate_on_stream(1001, at::kFloat);
  const at::Tensor found = get(device, again);
  at::globalContext().setDeterministicAlgorithms(false, /*warn_only=*/false);
  CHECK(found.sum().item<float>() == 3003);
}

TEST_CASE("cuda device: memory outlives the device that it is from") {
  at::Tensor memory;
  {
    CudaDevice device(0);
    memory = device.allocate(10, at::kFloat);
  }
  memory.fill_(3);
  CHECK(memory.sum().item<float>() == 30);
}

TEST_CASE("cuda device: the error for more memory than the GPU has says how much is free") {
  CudaDevice device(0);
  CHECK_THROWS_WITH(device.allocate(int64_t{1} << 50, at::kFloat), Catch::Contains("bytes of memory left"));
  CHECK(get(device, device.allocate(5, at::kFloat)).numel() == 5);  // the device still works
}

TEST_CASE("cuda device: an index without a GPU is a UserError") {
  CHECK_THROWS_AS(CudaDevice(c10::cuda::device_count()), UserError);
  CHECK_THROWS_AS(CudaDevice(-1), UserError);
}

TEST_CASE("cuda device: tensors of other devices and sizes are refused") {
  CudaDevice device(0);
  const at::Tensor here = device.allocate(8, at::kFloat);
  CHECK_THROWS_AS(device.copy_scaled(here, at::zeros({8}), 1), InternalError);
  CHECK_THROWS_AS(device.copy_scaled(here, device.allocate(7, at::kFloat), 1), InternalError);
  CHECK_THROWS_AS(device.zero(at::zeros({8})), InternalError);
}

}  // namespace zerorun::testing
