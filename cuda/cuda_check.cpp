#include "cuda/cuda_check.h"

#include <string>

#include "base/error.h"

namespace zerorun {

void fail_cuda(cudaError_t status, const char* call) {
  cudaGetLastError();  // clears the error, so that a later check does not report it again
  int device = -1;
  const bool known = cudaGetDevice(&device) == cudaSuccess;
  std::string message = std::string(call) + (known ? " on GPU " + std::to_string(device) : "") + ": " +
                        cudaGetErrorString(status) + " (" + cudaGetErrorName(status) + ")";
  if (status == cudaErrorIllegalAddress || status == cudaErrorLaunchFailure || status == cudaErrorAssert) {
    message += ": an earlier kernel or copy may be the cause, CUDA_LAUNCH_BLOCKING=1 shows which";
  }
  throw Error(message);
}

}  // namespace zerorun
