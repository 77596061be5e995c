// Tests how ranks choose between the GPU and the CPU, with fakes of the NVIDIA driver and of
// libzerorun_cuda.so. Where the real driver is installed, it is found before the fake, and tests that need
// the fake do nothing.
#include "comm/connect/cuda_library.h"

#include <dlfcn.h>
#include <sys/mman.h>
#include <torch/torch.h>
#include <unistd.h>

#include <atomic>
#include <catch2/catch.hpp>
#include <cstdlib>
#include <iostream>

#include "base/error.h"
#include "comm/connect/rendezvous.h"
#include "comm/thread_communicator.h"
#include "tests/comm/rank_processes.h"
#include "tests/support/stderr_capture.h"

namespace zerorun {
namespace {

using Catch::Matchers::Contains;
using Catch::Matchers::StartsWith;
using std::chrono::milliseconds;
using testing::Ending;
using testing::run_processes;

bool has_driver() {
  static const bool has = [] {
    const bool found = dlopen("libcuda.so.1", RTLD_LAZY | RTLD_LOCAL) != nullptr;
    if (found)
      std::cout << "left out: what needs a stand-in for the NVIDIA driver, which is installed" << std::endl;
    return found;
  }();
  return has;
}

// Gives this process `gpus` fake GPUs, and `library` as libzerorun_cuda.so. `wish` selects what the fake
// library does.
void set_up(int gpus, const std::string& library, const std::string& device, const std::string& wish = "") {
  setenv("FAKE_GPUS", std::to_string(gpus).c_str(), 1);
  setenv("FAKE_CUDA", wish.c_str(), 1);
  setenv("ZERORUN_CUDA_LIBRARY", library.c_str(), 1);
  setenv("ZERORUN_DEVICE", device.c_str(), 1);
  // After this call dlopen("libcuda.so.1") finds the fake driver, which has that name.
  if (!dlopen(ZERORUN_FAKE_DRIVER, RTLD_NOW | RTLD_GLOBAL)) throw std::runtime_error(dlerror());
}

std::string sum_of_all(Communicator& communicator) {
  at::Tensor tensor = at::full({3}, communicator.rank() + 1.0F);
  communicator.all_reduce(tensor, "greeting")->wait();
  return communicator.device().location().str() + " " + std::to_string(tensor.sum().item<double>());
}

// Runs connect() in a process of its own. Returns the log of that process, followed by the result or the
// error.
std::string outcome(int gpus, const std::string& library, const std::string& device,
                    const std::string& wish = "") {
  const auto endings = run_processes(1, [&](int) {
    set_up(gpus, library, device, wish);
    testing::StderrCapture log;
    try {
      const std::string result = sum_of_all(*connect());
      return log.text() + result;
    } catch (const UserError& error) {
      return log.text() + "UserError: " + error.what();
    } catch (const CommError& error) {
      return log.text() + "CommError: " + error.what();
    }
  });
  return endings.front().text;
}

constexpr char kOnCpu[] = "cpu 3.000000";

}  // namespace

TEST_CASE("cuda library: errors thrown in it are caught by their types") {
  const CudaLibrary library = load_cuda_library({"/nowhere/libzerorun_cuda.so", ZERORUN_FAKE_CUDA});
  REQUIRE(library.connect);
  CHECK(library.failure.empty());
  const std::shared_ptr<Communicator> control = make_thread_communicators(1).front();
  std::shared_ptr<Communicator> result;
  setenv("FAKE_CUDA", "UserError", 1);
  CHECK_THROWS_AS(library.connect({}, control, nullptr, result), UserError);
  CHECK_THROWS_WITH(library.connect({}, control, nullptr, result), "a mistake");
  setenv("FAKE_CUDA", "CommError", 1);
  CHECK_THROWS_AS(library.connect({}, control, nullptr, result), CommError);
  setenv("FAKE_CUDA", "InternalError", 1);
  CHECK_THROWS_AS(library.connect({}, control, nullptr, result), InternalError);
  CHECK_FALSE(result);
  setenv("FAKE_CUDA", "", 1);
  library.connect({}, control, nullptr, result);
  CHECK(result == control);
  unsetenv("FAKE_CUDA");
}

TEST_CASE("cuda library: a library that exists and does not fit is an error and is not skipped") {
  // The first library can be loaded, but lacks the function zerorun_connect_cuda. The second one has it.
  const CudaLibrary library = load_cuda_library({"libm.so.6", ZERORUN_FAKE_CUDA});
  CHECK_FALSE(library.connect);
  CHECK_THAT(library.failure, Contains("undefined symbol: zerorun_connect_cuda") &&
                                  Contains("rebuild ZeroRun on this machine"));
  // The first file exists, but is not a library.
  const CudaLibrary text =
      load_cuda_library({ZERORUN_SOURCE_DIR "/tests/comm/CMakeLists.txt", ZERORUN_FAKE_CUDA});
  CHECK_FALSE(text.connect);
  CHECK_THAT(text.failure, Contains("CMakeLists.txt"));
}

TEST_CASE("cuda library: the error of a failed load names the library that is missing") {
  CHECK_THAT(
      explain_load_failure("libzerorun_cuda.so: cannot open shared object file: No such file or directory"),
      StartsWith("cannot load the CUDA part of ZeroRun: libzerorun_cuda.so: cannot open") &&
          Contains("build ZeroRun on a machine with the CUDA toolkit") && Contains("ZERORUN_CUDA_LIBRARY"));
  const std::string built_for =
      std::to_string(TORCH_VERSION_MAJOR) + "." + std::to_string(TORCH_VERSION_MINOR);
  for (const std::string library : {"libtorch_nvshmem.so", "libc10_cuda.so", "libnccl.so.2", "libcudnn.so.9",
                                    "libcublas.so.13", "libcufile.so.0", "libnvshmem_host.so.3"}) {
    CHECK_THAT(explain_load_failure(library + ": cannot open shared object file: No such file or directory"),
               Contains("pip install 'torch==" + built_for +
                        ".*' in an environment, activate it and run scripts/build again") &&
                   Contains("add the folder of " + library + " to LD_LIBRARY_PATH"));
  }
  // The driver and other packages install these.
  for (const std::string library : {"libnvidia-ml.so.1", "libcuda.so.1", "libhwloc.so.15"}) {
    CHECK_THAT(explain_load_failure(library + ": cannot open shared object file: No such file or directory"),
               Contains("install " + library + ", or add its folder to LD_LIBRARY_PATH"));
  }
  CHECK_THAT(explain_load_failure("/opt/libtorch_cuda.so: undefined symbol: ncclDevCommCreate"),
             Contains("undefined symbol: ncclDevCommCreate") && Contains("another version"));
  CHECK_THAT(load_cuda_library({"libzerorun_cuda_nowhere.so"}).failure,
             Contains("libzerorun_cuda_nowhere.so"));
}

TEST_CASE("device: without a GPU the CPU is used, and nothing is logged") {
  if (has_driver()) return;
  CHECK(outcome(0, ZERORUN_FAKE_CUDA, "auto", "UserError") == kOnCpu);
  CHECK(outcome(0, ZERORUN_FAKE_CUDA, "", "UserError") == kOnCpu);
}

TEST_CASE("device: if the CPU is asked for, it is used also with GPUs, and nothing is logged") {
  CHECK(outcome(2, ZERORUN_FAKE_CUDA, "cpu", "UserError") == kOnCpu);
}

TEST_CASE("device: a driver or a GPU that is too old is an error, and the CPU is not used instead") {
  if (has_driver()) return;
  const auto [variable, value, reason] = GENERATE(
      table<std::string, std::string, std::string>({{"FAKE_DRIVER", "12040", "supports CUDA 12.4 at most"},
                                                    {"FAKE_CAPABILITY", "7", "compute capability 7.x"}}));
  setenv(variable.c_str(), value.c_str(), 1);
  const std::string with_auto = outcome(1, ZERORUN_FAKE_CUDA, "auto", "UserError");
  const std::string with_cuda = outcome(1, ZERORUN_FAKE_CUDA, "cuda", "UserError");
  unsetenv(variable.c_str());
  CHECK_THAT(with_auto, StartsWith("UserError: this machine has a GPU that training cannot use: ") &&
                            Contains(reason) && Contains("--device cpu"));
  CHECK_THAT(with_cuda, StartsWith("UserError: training on GPUs was requested") && Contains(reason));
}

TEST_CASE("device: GPUs are taken where there are any") {
  if (has_driver()) return;
  CHECK(outcome(2, ZERORUN_FAKE_CUDA, "auto") == kOnCpu);  // the fake library returns the CPU's communicator
  CHECK(outcome(2, ZERORUN_FAKE_CUDA, "auto", "report") ==
        "CommError: local rank 0 of 1, no store, control of 1");
  CHECK(outcome(2, ZERORUN_FAKE_CUDA, "cuda", "report") ==
        "CommError: local rank 0 of 1, no store, control of 1");
}

TEST_CASE("device: a GPU without the CUDA part is an error") {
  if (has_driver()) return;
  CHECK_THAT(
      outcome(2, "/nowhere/libzerorun_cuda.so", "auto"),
      StartsWith("UserError: this machine has a GPU that training cannot use: cannot load the CUDA part") &&
          Contains("ZERORUN_CUDA_LIBRARY") &&
          Catch::Matchers::EndsWith("--device cpu (or ZERORUN_DEVICE=cpu) trains on the CPU"));
  CHECK_THAT(
      outcome(2, "/nowhere/libzerorun_cuda.so", "cuda"),
      StartsWith(
          "UserError: training on GPUs was requested (--device cuda, ZERORUN_DEVICE=cuda), but cannot load"));
}

TEST_CASE("device: if GPUs are asked for and there are none, the error contains the driver's reason") {
  if (has_driver()) return;
  CHECK(outcome(0, ZERORUN_FAKE_CUDA, "cuda") ==
        "UserError: training on GPUs was requested (--device cuda, ZERORUN_DEVICE=cuda), but the NVIDIA "
        "driver's cuInit says CUDA_ERROR_NO_DEVICE");
  for (const auto& [code, remedy] :
       {std::pair{"802", "start the service nvidia-fabricmanager"}, {"803", "restart the machine"}}) {
    setenv("FAKE_INIT", code, 1);
    CHECK_THAT(outcome(1, ZERORUN_FAKE_CUDA, "cuda"),
               Contains(std::string("cuInit says error ") + code) && Contains(remedy));
    unsetenv("FAKE_INIT");
  }
  const auto endings = run_processes(1, [](int) {
    setenv("ZERORUN_DEVICE", "cuda", 1);
    return sum_of_all(*connect());
  });
  CHECK_THAT(endings.front().text, StartsWith("UserError: training on GPUs was requested") &&
                                       Contains("there is no NVIDIA driver") && Contains("libcuda.so.1"));
}

TEST_CASE("device: the CUDA library gets the store and each rank's local rank") {
  if (has_driver()) return;
  const int port = testing::free_port();
  // Each rank stays until both are done: its end would break connections that the other rank is still making.
  void* memory =
      mmap(nullptr, sizeof(std::atomic<int>), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  REQUIRE(memory != MAP_FAILED);
  auto* const done = new (memory) std::atomic<int>(0);
  const auto endings = run_processes(2, [&](int rank) {
    testing::set_rank_variables(rank, 2, port, milliseconds(20000));
    set_up(2, ZERORUN_FAKE_CUDA, "auto", "report");
    std::string text;
    try {
      text = sum_of_all(*connect());
    } catch (const CommError& error) {
      text = error.what();
    }
    ++*done;
    while (*done < 2) usleep(5000);  // run_processes() kills the ranks at its time limit
    return text;
  });
  for (int rank : {0, 1}) {
    CHECK(endings[rank].text == "local rank " + std::to_string(rank) + " of 2, a store, control of 2");
  }
}

TEST_CASE("device: if only some ranks have a GPU, every rank says so and none trains") {
  if (has_driver()) return;
  const int port = testing::free_port();
  const auto endings = run_processes(
      3,
      [&](int rank) {
        testing::set_rank_variables(rank, 3, port, milliseconds(20000));
        set_up(rank == 1 ? 0 : 2, ZERORUN_FAKE_CUDA, "auto", "report");
        return sum_of_all(*connect());
      },
      3);
  for (const Ending& ending : endings) {
    CHECK_THAT(ending.text,
               StartsWith("UserError: some ranks have a GPU: every rank needs a GPU that it can use, but "
                          "rank 1 found none") &&
                   Contains("--device cpu"));
  }
}

TEST_CASE("device: a rank without GPU is named where GPUs are asked for") {
  if (has_driver()) return;
  const int port = testing::free_port();
  const auto endings = run_processes(
      2,
      [&](int rank) {
        testing::set_rank_variables(rank, 2, port, milliseconds(20000));
        set_up(2, ZERORUN_FAKE_CUDA, rank == 1 ? "cpu" : "cuda", "report");
        return sum_of_all(*connect());
      },
      1);
  CHECK_THAT(endings[0].text, StartsWith("UserError: ") && Contains("rank 1 found none"));
}

}  // namespace zerorun
