#include "device/zeroed_memory.h"

#include <ATen/ops/from_blob.h>
#include <ATen/ops/zeros.h>
#include <sys/mman.h>

#include <cerrno>
#include <cstring>
#include <string>

#include "base/error.h"

namespace zerorun {

at::Tensor zeroed_memory(int64_t numel, at::ScalarType dtype) {
  constexpr size_t kLarge = size_t{1} << 20;
  const at::TensorOptions options = at::TensorOptions().dtype(dtype);
  const size_t bytes = static_cast<size_t>(numel) * c10::elementSize(dtype);
  if (bytes < kLarge) return at::zeros({numel}, options);
  void* pages = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (pages == MAP_FAILED) {
    throw Error("the system has no " + std::to_string(bytes) +
                " bytes of memory left: " + std::strerror(errno));
  }
  return at::from_blob(
      pages, {numel}, [bytes](void* memory) { munmap(memory, bytes); }, options);
}

}  // namespace zerorun
