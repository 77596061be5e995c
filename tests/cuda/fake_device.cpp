// A CudaDevice without kernels, on the fake CUDA (fake_cuda.h): the memory of its GPU is the host's, and all
// work is done when it is started. For tests of the classes that have a CudaDevice.
#include <ATen/ops/from_blob.h>
#include <c10/cuda/CUDAMacros.h>
#include <torch/library.h>

#include <cstdlib>
#include <cstring>

#include "base/error.h"
#include "cuda/cuda_device.h"
#include "tests/cuda/fake_cuda.h"

namespace c10::cuda::_internal {
C10_CUDA_API void setHasPrimaryContext(bool (*function)(DeviceIndex));
}

namespace at::native {
Tensor view(const Tensor& self, IntArrayRef size);  // NOLINT(readability-redundant-declaration)
}

// LibTorch's kernels for GPUs are in a library that is not loaded here.
TORCH_LIBRARY_IMPL(aten, CUDA, library) {
  library.impl("view", &at::native::view);
}

namespace zerorun {
namespace {

// LibTorch asks for contexts through a hook that the library with its kernels sets.
c10::DeviceIndex chosen(int index) {
  c10::cuda::_internal::setHasPrimaryContext(
      [](c10::DeviceIndex gpu) { return testing::fake_cuda().has_context[gpu].load(); });
  cudaSetDevice(index);
  return static_cast<c10::DeviceIndex>(index);
}

[[noreturn]] void no_kernel() {
  throw InternalError("the fake device has no kernels");
}

}  // namespace

CudaDevice::CudaDevice(int index)
    : location_(c10::kCUDA, chosen(index)), max_blocks_(1), streams_(location_) {}
CudaDevice::~CudaDevice() = default;

at::Tensor CudaDevice::allocate(int64_t numel, at::ScalarType dtype) {
  const size_t bytes = static_cast<size_t>(numel) * c10::elementSize(dtype) + 1;
  return at::for_blob(std::calloc(bytes, 1), {numel})
      .deleter(std::free)
      .options(at::TensorOptions().dtype(dtype).device(location_))
      .target_device(location_)
      .make_tensor();
}
at::Tensor CudaDevice::allocate_on_stream(int64_t numel, at::ScalarType dtype) {
  return allocate(numel, dtype);
}
void CudaDevice::copy(const at::Tensor& to, const at::Tensor& from) {
  std::memcpy(to.mutable_data_ptr(), from.const_data_ptr(), from.nbytes());
}
void CudaDevice::record_stream(const at::Tensor&, StreamId) {}
void CudaDevice::empty_cache() {}
int64_t CudaDevice::bucket_bytes(int) const {
  return 1 << 20;
}

at::Tensor CudaDevice::allocate_on_host(int64_t, at::ScalarType) {
  no_kernel();
}
std::shared_ptr<void> CudaDevice::pin(void*, size_t) {
  no_kernel();
}
void CudaDevice::zero(const at::Tensor&) {
  no_kernel();
}
void CudaDevice::copy_scaled(const at::Tensor&, const at::Tensor&, float, const FiniteCheck&) {
  no_kernel();
}
void CudaDevice::add_scaled(const at::Tensor&, const at::Tensor&, float, const FiniteCheck&) {
  no_kernel();
}
void CudaDevice::copy_scaled(const at::Tensor&, const at::Tensor&, float) {
  no_kernel();
}
void CudaDevice::add_scaled(const at::Tensor&, const at::Tensor&, float) {
  no_kernel();
}
void CudaDevice::add_squares(const at::Tensor&, const at::Tensor&, int64_t, double) {
  no_kernel();
}
void CudaDevice::publish(const at::Tensor&, const at::Tensor&, int, int) {
  no_kernel();
}
void CudaDevice::decide(const at::Tensor&, int, const StepRule&) {
  no_kernel();
}
void CudaDevice::update(const UpdateRule&, const UpdateTensors&, const at::Tensor&) {
  no_kernel();
}
void CudaDevice::follow_written(const at::Tensor&, const at::Tensor&) {
  no_kernel();
}

}  // namespace zerorun
