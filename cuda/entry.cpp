// The function that programs find in this library when they load it (comm/connect/cuda_library.h).
#include <ATen/Context.h>
#include <c10/cuda/CUDAFunctions.h>

#include "base/error.h"
#include "comm/connect/cuda_library.h"
#include "cuda/nccl_communicator.h"

namespace zerorun {
namespace {

// Assigns the machine's GPUs to its ranks round-robin. If ranks then share a GPU, check_peers() in
// cuda/peers.h decides whether that is allowed.
int device_of(const Environment& environment) {
  const int count = c10::cuda::device_count();
  if (count == 0)
    throw UserError("training on GPUs: LibTorch's CUDA library finds none of the driver's GPUs");
  return environment.local_rank % count;
}

}  // namespace
}  // namespace zerorun

extern "C" __attribute__((visibility("default"))) void zerorun_connect_cuda(
    const zerorun::Environment& environment, const std::shared_ptr<zerorun::Communicator>& control,
    const zerorun::StorePointer& store, std::shared_ptr<zerorun::Communicator>& result) {
  using namespace zerorun;
  static_assert(std::is_same_v<decltype(zerorun_connect_cuda), ConnectCuda>);
  if (!at::globalContext().hasCUDART()) {
    throw UserError(
        "training on GPUs: this program has used LibTorch before ZeroRun could load LibTorch's CUDA library, "
        "and LibTorch does not find it afterwards: start the program without ZERORUN_DEVICE=cpu");
  }
  auto device = std::make_unique<CudaDevice>(device_of(environment));
  result = std::make_shared<NcclCommunicator>(environment, std::move(device), control, store);
}
