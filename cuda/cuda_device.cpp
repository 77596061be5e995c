#include "cuda/cuda_device.h"

#include <ATen/Context.h>
#include <ATen/cuda/EmptyTensor.h>
#include <ATen/ops/from_blob.h>
#include <c10/core/AllocatorConfig.h>
#include <c10/cuda/CUDACachingAllocator.h>
#include <c10/cuda/CUDAFunctions.h>
#include <c10/cuda/CUDAStream.h>

#include <algorithm>
#include <string>

#include "base/error.h"
#include "cuda/cached_memory.h"
#include "cuda/cuda_check.h"
#include "cuda/cuda_memory.h"
#include "cuda/kernel_bodies.h"
#include "cuda/pinned_memory.h"
#include "device/dtypes.h"
#include "device/step_facts.h"
#include "device/update_rules.h"
#include "device/update_span.h"

namespace zerorun {
namespace {

// The maximum number of blocks per multiprocessor. With many small blocks all multiprocessors finish a kernel
// at nearly the same time.
constexpr int64_t kBlocksPerMultiprocessor = 32;

// Makes GPU `index` the current GPU of the thread.
c10::Device choose(int index) {
  int count = 0;
  const cudaError_t status = cudaGetDeviceCount(&count);
  if (status != cudaSuccess || count == 0) {
    cudaGetLastError();
    throw UserError(std::string("no GPU to run on: ") + cudaGetErrorString(status));
  }
  if (index < 0 || index >= count) {
    throw UserError("no GPU with number " + std::to_string(index) + ": this process sees " +
                    std::to_string(count) + " (CUDA_VISIBLE_DEVICES says which)");
  }
  int major = 0;
  int minor = 0;
  ZR_CUDA(cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, index));
  ZR_CUDA(cudaDeviceGetAttribute(&minor, cudaDevAttrComputeCapabilityMinor, index));
  if (major < 8) {
    throw UserError("GPU " + std::to_string(index) + " has compute capability " + std::to_string(major) +
                    "." + std::to_string(minor) + ": 8.0 (A100) or later is needed");
  }
  const auto device = static_cast<c10::DeviceIndex>(index);
  at::globalContext().lazyInitDevice(c10::kCUDA);
  c10::cuda::set_device(device);
  return {c10::kCUDA, device};
}

int64_t blocks_of(c10::Device device) {
  int multiprocessors = 0;
  ZR_CUDA(cudaDeviceGetAttribute(&multiprocessors, cudaDevAttrMultiProcessorCount, device.index()));
  return kBlocksPerMultiprocessor * multiprocessors;
}

// Returns at least 1, so that an empty tensor has a non-null pointer, from which LibTorch can tell its
// device.
size_t allocated_bytes(int64_t numel, at::ScalarType dtype) {
  return std::max<size_t>(static_cast<size_t>(numel) * c10::elementSize(dtype), 1);
}

Tally* tally_in(const at::Tensor& tensor) {
  ZR_CHECK(tensor.nbytes() >= sizeof(Tally), std::to_string(tensor.nbytes()) + " bytes");
  return static_cast<Tally*>(tensor.mutable_data_ptr());
}

void check_pair(const at::Tensor& to, const at::Tensor& from) {
  ZR_CHECK(to.numel() == from.numel(),
           std::to_string(from.numel()) + " values to " + std::to_string(to.numel()));
}

}  // namespace

CudaDevice::CudaDevice(int index)
    : location_(choose(index)), max_blocks_(blocks_of(location_)), streams_(location_) {}

CudaDevice::~CudaDevice() {
  for (const auto& [stream, scratch] : scratch_) {
    free_when_idle(location_.index(), [memory = scratch] { cudaFree(memory); });
  }
}

at::Tensor CudaDevice::allocate(int64_t numel, at::ScalarType dtype) {
  const size_t bytes = allocated_bytes(numel, dtype);
  void* memory = nullptr;
  cudaError_t status = cudaMalloc(&memory, bytes);
  if (status == cudaErrorMemoryAllocation) {
    free_cached_memory();
    status = cudaMalloc(&memory, bytes);
  }
  const c10::DeviceIndex device = location_.index();
  if (status != cudaSuccess)
    fail_allocation("GPU " + std::to_string(device), bytes, cudaGetErrorString(status));
  at::Tensor tensor = at::from_blob(
      memory, {numel}, [device](void* freed) { free_when_idle(device, [freed] { cudaFree(freed); }); },
      at::TensorOptions().dtype(dtype).device(location_), location_);
  fill_with_zeros(memory, bytes);
  return tensor;
}

// LibTorch's caching allocator reuses freed memory without a wait, but only on the stream for which it was
// allocated. Not at::empty(): with torch.use_deterministic_algorithms() it fills new memory with NaN, while
// other streams may still read what was there.
at::Tensor CudaDevice::allocate_on_stream(int64_t numel, at::ScalarType dtype) {
  return at::Tensor(at::detail::empty_cuda({numel}, dtype, location_, std::nullopt));
}

// LibTorch's own allocator frees memory by cudaFree(), which waits for every stream. So nothing need be
// recorded, and freed memory is reused at once. But expandable segments (PYTORCH_CUDA_ALLOC_CONF) are
// unmapped as soon as the allocating stream has finished, and other allocators give no promise.
void CudaDevice::record_stream(const at::Tensor& memory, StreamId stream) {
  namespace allocator = c10::cuda::CUDACachingAllocator;
  if (allocator::name() == "native" &&
      !c10::CachingAllocator::AcceleratorAllocatorConfig::use_expandable_segments())
    return;
  const c10::Stream user(c10::Stream::UNSAFE, location_, stream);
  allocator::recordStream(memory.storage().data_ptr(), c10::cuda::CUDAStream(user));
}

void CudaDevice::empty_cache() {
  free_cached_memory();
}

at::Tensor CudaDevice::allocate_on_host(int64_t numel, at::ScalarType dtype) {
  return pinned_memory(numel, dtype, location_.index());
}

std::shared_ptr<void> CudaDevice::pin(void* memory, size_t bytes) {
  return page_lock(memory, bytes, location_.index());
}

int64_t CudaDevice::bucket_bytes(int world_size) const {
  if (world_size == 1) return Device::bucket_bytes(world_size);  // no collectives
  constexpr int64_t kMebibyte = int64_t{1} << 20;
  return std::max(256 * kMebibyte, 4 * kMebibyte * world_size);
}

void CudaDevice::zero(const at::Tensor& values) {
  check_here(values);
  if (values.numel() == 0) return;
  ZR_CUDA(cudaMemsetAsync(values.mutable_data_ptr(), 0, values.nbytes(), stream()));
}

void CudaDevice::copy(const at::Tensor& to, const at::Tensor& from) {
  ZR_CHECK(to.nbytes() == from.nbytes() && to.is_contiguous() && from.is_contiguous(),
           "copies of different sizes");
  ZR_CHECK(to.device() == location_ || from.device() == location_, "a copy among others");
  if (to.numel() == 0) return;
  ZR_CUDA(cudaMemcpyAsync(to.mutable_data_ptr(), from.const_data_ptr(), from.nbytes(), cudaMemcpyDefault,
                          stream()));
}

void CudaDevice::copy_scaled(const at::Tensor& to, const at::Tensor& from, float factor,
                             const FiniteCheck& finite_check) {
  check_pair(to, from);
  ZR_CUDA(cuda::copy_scaled(launch(), target(to), source(from), to.numel(), factor, on_device(finite_check)));
}

void CudaDevice::add_scaled(const at::Tensor& to, const at::Tensor& from, float factor,
                            const FiniteCheck& finite_check) {
  check_pair(to, from);
  ZR_CUDA(cuda::add_scaled(launch(), target(to), source(from), to.numel(), factor, on_device(finite_check)));
}

void CudaDevice::copy_scaled(const at::Tensor& to, const at::Tensor& from, float factor) {
  check_pair(to, from);
  ZR_CUDA(cuda::copy_scaled(launch(), target(to), source(from), to.numel(), factor, {}));
}

void CudaDevice::add_scaled(const at::Tensor& to, const at::Tensor& from, float factor) {
  check_pair(to, from);
  ZR_CUDA(cuda::add_scaled(launch(), target(to), source(from), to.numel(), factor, {}));
}

void CudaDevice::add_squares(const at::Tensor& tally, const at::Tensor& values, int64_t number,
                             double weight) {
  check_here(tally);
  if (values.numel() == 0) return;
  const cuda::Launch given = launch();
  ZR_CUDA(cuda::add_squares(given, tally_in(tally), scratch_of(given.stream), source(values), values.numel(),
                            number, weight));
}

void CudaDevice::publish(const at::Tensor& exchange, const at::Tensor& tally, int rank, int ranks) {
  check_here(exchange);
  check_here(tally);
  ZR_CHECK(exchange.numel() >= exchanged_numel(ranks), std::to_string(exchange.numel()) + " elements");
  ZR_CUDA(cuda::publish(stream(), tally_in(tally), exchange.mutable_data_ptr<double>(), rank, ranks));
}

void CudaDevice::decide(const at::Tensor& exchange, int ranks, const StepRule& rule) {
  check_here(exchange);
  ZR_CHECK(exchange.numel() >= exchanged_numel(ranks) + kFactsNumel,
           std::to_string(exchange.numel()) + " elements");
  ZR_CUDA(cuda::decide(stream(), exchange.mutable_data_ptr<double>(), ranks, rule));
}

void CudaDevice::update(const UpdateRule& rule, const UpdateTensors& tensors, const at::Tensor& facts) {
  check_here(facts);
  ZR_CHECK(facts.nbytes() >= sizeof(StepFacts), std::to_string(facts.nbytes()) + " bytes");
  for (const at::Tensor* tensor : {&tensors.gradient, &tensors.values, &tensors.first, &tensors.second,
                                   &tensors.third, &tensors.rounded}) {
    if (!tensor->defined()) continue;
    check_here(*tensor);
    check_pair(*tensor, tensors.values);
  }
  for (const at::Tensor* scales : {&tensors.first_scales, &tensors.second_scales})
    if (scales->defined()) check_here(*scales);
  const auto* known = static_cast<const StepFacts*>(facts.const_data_ptr());
  ZR_CUDA(cuda::update(launch(), rule, span_of(tensors), known));
}

void CudaDevice::follow_written(const at::Tensor& master, const at::Tensor& values) {
  check_here(master);
  check_pair(master, values);
  ZR_CUDA(cuda::follow_written(launch(), master.mutable_data_ptr<float>(), source(values), values.numel()));
}

// Each stream has scratch memory of its own, because sums on different streams may overlap. The stream's
// first sum creates it.
cuda::SquaresScratch* CudaDevice::scratch_of(cudaStream_t stream) {
  const std::lock_guard lock(scratch_mutex_);
  for (const auto& [owner, scratch] : scratch_) {
    if (owner == stream) return scratch;
  }
  void* memory = nullptr;
  ZR_CUDA(cudaMalloc(&memory, sizeof(cuda::SquaresScratch)));
  auto* made = static_cast<cuda::SquaresScratch*>(memory);
  scratch_.emplace_back(stream, made);
  ZR_CUDA(cudaMemsetAsync(memory, 0, sizeof(cuda::SquaresScratch), stream));
  return made;
}

void CudaDevice::check_here(const at::Tensor& tensor) const {
  ZR_CHECK(tensor.device() == location_ && tensor.is_contiguous(),
           "a tensor on " + tensor.device().str() + " for " + location_.str());
}

cuda::Target CudaDevice::target(const at::Tensor& tensor) const {
  check_here(tensor);
  return {tensor.mutable_data_ptr(), dtype_of(tensor)};
}

cuda::Source CudaDevice::source(const at::Tensor& tensor) const {
  check_here(tensor);
  return {tensor.const_data_ptr(), dtype_of(tensor)};
}

cuda::FiniteCheck CudaDevice::on_device(const FiniteCheck& finite_check) const {
  check_here(finite_check.tally);
  return {&tally_in(finite_check.tally)->gradient, finite_check.number};
}

}  // namespace zerorun
