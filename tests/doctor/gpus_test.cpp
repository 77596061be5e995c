// Tests that GPUs and drivers are read from recorded files, and the findings about them.
#include "doctor/gpus.h"

#include "tests/doctor/findings.h"
#include "tests/support/temporary_folder.h"

using Catch::Matchers::Contains;
using Catch::Matchers::StartsWith;
using zerorun::Gpus;
using zerorun::judge_gpus;
using zerorun::testing::lines_about;

namespace {

// /proc/driver/nvidia/version with NVIDIA's proprietary kernel module and with its open one.
const std::string kClosed =
    "NVRM version: NVIDIA UNIX x86_64 Kernel Module  535.129.03  Thu Oct 19 18:56:32 UTC 2023\n"
    "GCC version:  gcc version 12.2.0 (Debian 12.2.0-14)\n";
const std::string kOpen =
    "NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  580.65.06  Release Build  (dvs-builder@U22)  "
    "Sun Jul 27\n";

Gpus working() {
  Gpus gpus;
  gpus.kernel_driver = gpus.library_driver = "580.65.06";
  gpus.cuda_version = 13000;
  gpus.gpus = {{"NVIDIA H100 80GB HBM3", 80LL << 30}, {"NVIDIA H100 80GB HBM3", 0}};
  return gpus;
}

}  // namespace

TEST_CASE("GPUs: the driver's version is read from the kernel module's text") {
  CHECK(zerorun::driver_version_in(kClosed) == "535.129.03");
  CHECK(zerorun::driver_version_in(kOpen) == "580.65.06");
  CHECK(zerorun::driver_version_in("").empty());
  CHECK(zerorun::driver_version_in("NVRM version: none\n1.2.3").empty());
}

TEST_CASE("GPUs: models are read from the driver's files") {
  const zerorun::testing::TemporaryFolder root;
  for (const char* slot : {"0000:18:00.0", "0000:3b:00.0"}) {
    const std::string folder = std::string("proc/driver/nvidia/gpus/") + slot;
    std::filesystem::create_directories(root / folder);
    root.write(folder + "/information", "Model: \t\t NVIDIA A100-SXM4-40GB\nIRQ:   \t\t 90\n");
  }
  root.write("proc/driver/nvidia/version", kClosed);
  const Gpus gpus = zerorun::read_gpus((root / "").parent_path());
  CHECK(gpus.kernel_driver == "535.129.03");
  REQUIRE(gpus.gpus.size() == 2);
  CHECK(gpus.gpus[1].name == "NVIDIA A100-SXM4-40GB");
}

TEST_CASE("GPUs: a host without GPUs is no problem") {
  CHECK(lines_about(judge_gpus({}), "GPU driver") ==
        "ok       GPU driver       none, ranks run on the CPU\n");
  CHECK(judge_gpus({}).size() == 1);
}

TEST_CASE("GPUs: a working driver, and problems with their remedies") {
  CHECK(to_text(judge_gpus(working())) ==
        "  ok       GPU driver       580.65.06, runs CUDA up to 13.0\n"
        "  ok       GPU 0            NVIDIA H100 80GB HBM3, 80.0 GiB\n"
        "  ok       GPU 1            NVIDIA H100 80GB HBM3\n");
  Gpus gpus = working();
  gpus.cuda_version = 12020;
  CHECK_THAT(lines_about(judge_gpus(gpus), "GPU driver"),
             StartsWith("problem ") && Contains("runs CUDA up to 12.2") && Contains("driver from 580"));
  gpus = working();
  gpus.kernel_driver = "535.129.03";
  CHECK_THAT(lines_about(judge_gpus(gpus), "GPU driver"),
             StartsWith("problem ") && Contains("the kernel runs 535.129.03") && Contains("restart"));
  gpus = working();
  gpus.library_driver = "";
  gpus.library_error = "the driver's library libnvidia-ml.so.1 is not installed";
  CHECK_THAT(lines_about(judge_gpus(gpus), "GPU driver"), StartsWith("problem ") && Contains("--gpus all"));
  gpus = working();
  gpus.gpus.clear();
  CHECK_THAT(lines_about(judge_gpus(gpus), "GPUs"), StartsWith("problem ") && Contains("shows no GPU"));
}
