// Stands for libzerorun_cuda.so: does as the variable FAKE_CUDA says, so that tests see what crosses the
// border.
#include <cstdlib>
#include <string>

#include "base/error.h"
#include "comm/cuda_library.h"

extern "C" __attribute__((visibility("default"))) void zerorun_connect_cuda(
    const zerorun::Environment& environment, const std::shared_ptr<zerorun::Communicator>& control,
    const zerorun::StorePointer& store, std::shared_ptr<zerorun::Communicator>& result) {
  using namespace zerorun;
  const char* variable = std::getenv("FAKE_CUDA");
  const std::string wish = variable ? variable : "";
  if (wish == "UserError") throw UserError("a mistake");
  if (wish == "CommError") throw CommError("a missing rank");
  if (wish == "InternalError") throw InternalError("a defect");
  // What has been called, in words that tests compare.
  if (wish == "report") {
    throw CommError("local rank " + std::to_string(environment.local_rank) + " of " +
                    std::to_string(environment.local_world_size) + (store ? ", a store" : ", no store") +
                    ", control of " + std::to_string(control->world_size()));
  }
  result = control;
}
