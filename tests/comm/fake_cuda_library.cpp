// A fake libzerorun_cuda.so. The environment variable FAKE_CUDA selects an error to throw, or "report": then
// the error's text describes the arguments of the call.
#include <cstdlib>
#include <string>

#include "base/error.h"
#include "comm/connect/cuda_library.h"

extern "C" __attribute__((visibility("default"))) void zerorun_connect_cuda(
    const zerorun::Environment& environment, const std::shared_ptr<zerorun::Communicator>& control,
    const zerorun::StorePointer& store, std::shared_ptr<zerorun::Communicator>& result) {
  using namespace zerorun;
  const char* variable = std::getenv("FAKE_CUDA");
  const std::string wish = variable ? variable : "";
  if (wish == "UserError") throw UserError("a mistake");
  if (wish == "CommError") throw CommError("a missing rank");
  if (wish == "InternalError") throw InternalError("a defect");
  if (wish == "report") {
    throw CommError("local rank " + std::to_string(environment.local_rank) + " of " +
                    std::to_string(environment.local_world_size) + (store ? ", a store" : ", no store") +
                    ", control of " + std::to_string(control->world_size()));
  }
  result = control;
}
