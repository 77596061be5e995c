// Tests that GPUs and drivers are read from recorded files and a fake of NVML, and the findings about them.
// The fake is loaded first, so it is found also where the real NVML is installed.
#include "doctor/gpus.h"

#include <dlfcn.h>

#include <cstdlib>
#include <utility>

#include "doctor/nccl.h"
#include "tests/doctor/findings.h"
#include "tests/support/temporary_folder.h"

using Catch::Matchers::Contains;
using Catch::Matchers::StartsWith;
using zerorun::testing::count_of;
using zerorun::testing::lines_about;
using zerorun::testing::TemporaryFolder;
using namespace zerorun::doctor;

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
  for (const char* address : {"0000:18:00.0", "0000:3b:00.0"}) {
    gpus.gpus.push_back({.name = "NVIDIA H100 80GB HBM3",
                         .memory_bytes = 80LL << 30,
                         .address = address,
                         .ecc_on = true,
                         .uncorrected_errors = 0,
                         .mig_on = false,
                         .compute_mode = ComputeMode::shared,
                         .nvlinks = 18});
    gpus.listed.emplace_back(address);
    gpus.pci.push_back({address, "nvidia", true});
  }
  gpus.xids.emplace();
  return gpus;
}

std::string lines_of(const Gpus& gpus, const std::string& subject, int ranks = 2) {
  return lines_about(judge_gpus(gpus, ranks), subject);
}

// A machine's files: `gpus` GPUs on the PCI bus at 0000:10:00.0, 0000:11:00.0, ... with NVIDIA's driver.
class Machine {
 public:
  explicit Machine(int gpus) {
    for (int number = 0; number < gpus; ++number) {
      const std::string address = "0000:1" + std::to_string(number) + ":00.0";
      add_pci(address, "0x10de", "0x030200", "nvidia");
      write("proc/driver/nvidia/gpus/" + address + "/information",
            "Model: \t\t NVIDIA A100-SXM4-40GB\nIRQ: 90\n");
    }
    add_pci("0000:05:00.0", "0x10de", "0x068000", "");     // an NVSwitch
    add_pci("0000:06:00.0", "0x1a03", "0x030000", "ast");  // another vendor's graphics
    write("proc/driver/nvidia/version", kOpen);
    for (const char* name : {"FAKE_NVML_INIT", "FAKE_NVML_GPUS", "FAKE_LOST", "FAKE_ERRORS", "FAKE_MODE",
                             "FAKE_MIG", "FAKE_NVLINKS"})
      ::unsetenv(name);
    ::setenv("FAKE_NVML_GPUS", std::to_string(gpus).c_str(), 1);
    if (!::dlopen(ZERORUN_FAKE_DRIVER_FOLDER "/libnvidia-ml.so.1", RTLD_NOW | RTLD_GLOBAL))
      throw std::runtime_error(::dlerror());
  }

  void add_pci(const std::string& address, const std::string& vendor, const std::string& kind,
               const std::string& driver) {
    const std::string folder = "sys/bus/pci/devices/" + address;
    write(folder + "/vendor", vendor + "\n");
    write(folder + "/class", kind + "\n");
    write(folder + "/config", "\xde\x10 and more");
    if (!driver.empty())
      std::filesystem::create_symlink("../../drivers/" + driver, root_ / (folder + "/driver"));
  }
  void write(const std::string& path, const std::string& text) {
    std::filesystem::create_directories((root_ / path).parent_path());
    root_.write(path, text);
  }
  Gpus read() const { return read_gpus((root_ / "").parent_path()); }
  Findings judge(int ranks = 2) const { return judge_gpus(read(), ranks); }

 private:
  TemporaryFolder root_;
};

}  // namespace

TEST_CASE("GPUs: the driver's version is read from the kernel module's text") {
  CHECK(driver_version_in(kClosed) == "535.129.03");
  CHECK(driver_version_in(kOpen) == "580.65.06");
  CHECK(driver_version_in("").empty());
  CHECK(driver_version_in("NVRM version: none\n1.2.3").empty());
}

TEST_CASE("GPUs: without NVML, models are read from the driver's files") {
  Machine machine(2);
  ::setenv("FAKE_NVML_INIT", "9", 1);
  const Gpus gpus = machine.read();
  CHECK(gpus.kernel_driver == "580.65.06");
  CHECK(gpus.library_error == "NVML says: Driver Not Loaded");
  REQUIRE(gpus.gpus.size() == 2);
  CHECK(gpus.gpus[1].name == "NVIDIA A100-SXM4-40GB");
  CHECK_THAT(lines_about(machine.judge(), "GPU driver"),
             StartsWith("problem ") && Contains("580.65.06, but NVML says: Driver Not Loaded"));
}

TEST_CASE("GPUs: NVML, /proc and the PCI bus agree on a machine where all is well") {
  Machine machine(2);
  const Gpus gpus = machine.read();
  CHECK(gpus.pci.size() == 2);
  CHECK(gpus.listed == std::vector<std::string>{"0000:10:00.0", "0000:11:00.0"});
  REQUIRE(gpus.gpus.size() == 2);
  CHECK(gpus.gpus[1].address == "0000:11:00.0");
  CHECK(gpus.gpus[1].nvlinks == 18);
  CHECK(gpus.gpus[1].ecc_on == true);
  CHECK(gpus.gpus[1].mig_on == false);
  CHECK(gpus.gpus[1].compute_mode == ComputeMode::shared);
  machine.write("dev/kmsg", "");
  CHECK(to_text(machine.judge()) ==
        "  ok       GPU driver       580.65.06, runs CUDA up to 13.0\n"
        "  ok       GPU 0            NVIDIA H100 80GB HBM3, 80.0 GiB, PCI 0000:10:00.0, ECC, 18 NVLinks\n"
        "  ok       GPU 1            NVIDIA H100 80GB HBM3, 80.0 GiB, PCI 0000:11:00.0, ECC, 18 NVLinks\n"
        "  ok       GPUs             2 of 2 GPUs on the PCI bus can be used here\n"
        "  ok       NVLink           18 links of each GPU are up\n");
}

TEST_CASE("GPUs: a GPU that does not answer is named by NVML, the driver's list and the bus") {
  Machine machine(4);
  ::setenv("FAKE_LOST", "3", 1);
  Findings findings = machine.judge();
  CHECK_THAT(lines_about(findings, "GPU 3"),
             StartsWith("problem ") && Contains("does not answer: GPU is lost"));
  CHECK_THAT(lines_about(findings, "GPUs"),
             StartsWith("problem ") &&
                 Contains("PCI 0000:13:00.0: the kernel's module has it, and it does not answer") &&
                 Contains("3 of 4 GPUs on the PCI bus can be used here"));
  machine.write("sys/bus/pci/devices/0000:13:00.0/config", "\xff\xff\xff\xff");
  findings = machine.judge();
  CHECK_THAT(lines_about(findings, "GPUs"), Contains("PCI 0000:13:00.0: does not answer on the bus"));
}

TEST_CASE("GPUs: those on the PCI bus that the driver does not show") {
  Machine machine(2);
  machine.add_pci("0000:20:00.0", "0x10de", "0x030200", "nvidia");  // of another container
  machine.add_pci("0000:21:00.0", "0x10de", "0x030200", "");
  machine.add_pci("0000:22:00.0", "0x10de", "0x030200", "vfio-pci");
  const std::string lines = lines_about(machine.judge(), "GPUs");
  CHECK_THAT(lines, StartsWith("note     GPUs             PCI 0000:20:00.0: not shown to this process") &&
                        Contains("problem  GPUs             PCI 0000:21:00.0: no driver has taken it") &&
                        !Contains("0000:22:00.0") && Contains("2 of 5 GPUs"));
}

TEST_CASE("GPUs: what NVML says of a GPU that is not fit") {
  Machine machine(2);
  const auto [variable, value, ranks, subject, expected] =
      GENERATE(table<std::string, std::string, int, std::string, std::string>(
          {{"FAKE_ERRORS", "3", 2, "GPU 1", "3 memory errors that ECC could not correct"},
           {"FAKE_MODE", "2", 2, "GPU 1", "Prohibited"},
           {"FAKE_MODE", "3", 3, "compute mode", "2 GPUs in compute mode Exclusive Process, and 3 ranks"},
           {"FAKE_NVLINKS", "12", 2, "GPU 0", "6 of 18 NVLinks are down"}}));
  ::setenv(variable.c_str(), value.c_str(), 1);
  CHECK_THAT(lines_about(machine.judge(ranks), subject), StartsWith("problem ") && Contains(expected));
}

TEST_CASE("GPUs: what is worth a note, and what is none") {
  Machine machine(2);
  ::setenv("FAKE_MIG", "1", 1);
  ::setenv("FAKE_MODE", "3", 1);
  const Findings findings = machine.judge(2);
  CHECK_THAT(lines_about(findings, "GPU 1"), Contains("note     GPU 1            MIG is on"));
  CHECK_THAT(lines_about(findings, "compute mode"), StartsWith("ok "));
  CHECK(count_of(findings, Verdict::problem) == 0);
  ::setenv("FAKE_NVLINKS", "0", 1);
  CHECK_THAT(lines_about(machine.judge(2), "NVLink"), StartsWith("ok ") && Contains("over PCI Express"));
}

TEST_CASE("GPUs: Xids of the kernel's log") {
  Machine machine(2);
  machine.write(
      "dev/kmsg",
      "6,100,1000,-;usb 1-1: new device\n"
      "4,101,2000,-;NVRM: Xid (PCI:0000:11:00): 79, pid='<unknown>', name=<unknown>, GPU has fallen off the "
      "bus.\n"
      "4,102,3000,-;NVRM: Xid (PCI:0000:10:00): 13, pid=77, name=python3, Graphics Exception: ESR 0x1, 0x2\n"
      "4,103,3001,-;NVRM: Xid (PCI:0000:10:00): 13, pid=78, name=python3, Graphics Exception: ESR 0x3\n"
      "4,104,3001,-;NVRM: Xid (PCI:0000:10:00\n");
  const Gpus gpus = machine.read();
  REQUIRE(gpus.xids);
  REQUIRE(gpus.xids->size() == 3);
  CHECK(gpus.xids->front() == Xid{"0000:11:00", 79, "GPU has fallen off the bus."});
  const std::string lines = lines_of(gpus, "GPU error");
  CHECK_THAT(
      lines,
      Contains("problem  GPU error        Xid 79 of PCI 0000:11:00 (since the machine started): GPU has "
               "fallen off the bus.") &&
          Contains("Xid 13 of PCI 0000:10:00 (2 times, since the machine started): Graphics Exception: "
                   "ESR 0x3"));
  CHECK_THAT(lines, StartsWith("note "));
}

TEST_CASE("GPUs: a log that may not be read is a note, if there is a GPU") {
  Machine machine(1);
  CHECK_THAT(lines_about(machine.judge(1), "GPU errors"), StartsWith("note ") && Contains("may not be read"));
  CHECK(lines_of({}, "GPU errors").empty());
}

TEST_CASE("GPUs: a host without GPUs, or whose GPUs others use, is no problem") {
  CHECK(lines_of({}, "GPU driver") == "ok       GPU driver       none, ranks run on the CPU\n");
  CHECK(judge_gpus({}, 2).size() == 1);
  Gpus gpus;
  gpus.pci = {{"0000:18:00.0", "vfio-pci", true}};
  CHECK_THAT(lines_of(gpus, "GPU driver"), StartsWith("ok ") && Contains("for virtual machines"));
  gpus.pci = {{"0000:18:00.0", "nvidia", true}};
  CHECK_THAT(lines_of(gpus, "GPU driver"),
             StartsWith("note ") && Contains("not given") && Contains("--gpus all"));
  gpus.pci = {{"0000:18:00.0", "", true}};
  CHECK_THAT(lines_of(gpus, "GPU driver"),
             StartsWith("problem ") && Contains("1 GPU on the PCI bus, and no driver"));
}

TEST_CASE("GPUs: problems of the driver with their remedies") {
  CHECK(count_of(judge_gpus(working(), 2), Verdict::problem) == 0);
  Gpus gpus = working();
  gpus.cuda_version = 12020;
  CHECK_THAT(lines_of(gpus, "GPU driver"),
             StartsWith("problem ") && Contains("runs CUDA up to 12.2") && Contains("driver from 580"));
  gpus = working();
  gpus.kernel_driver = "535.129.03";
  CHECK_THAT(lines_of(gpus, "GPU driver"),
             StartsWith("problem ") && Contains("the kernel runs 535.129.03") && Contains("restart"));
  gpus = working();
  gpus.library_driver = "";
  gpus.library_error = "the driver's library libnvidia-ml.so.1 is not installed";
  CHECK_THAT(lines_of(gpus, "GPU driver"), StartsWith("problem ") && Contains("--gpus all"));
  gpus = working();
  gpus.gpus.clear();
  CHECK_THAT(lines_of(gpus, "GPUs"), Contains("problem ") && Contains("shows no GPU"));
  gpus = working();
  gpus.gpus[1].remap_pending = true;
  gpus.gpus[0].remap_failed = true;
  CHECK_THAT(lines_of(gpus, "GPU 1"), StartsWith("problem ") && Contains("wait to be replaced"));
  CHECK_THAT(lines_of(gpus, "GPU 0"), StartsWith("problem ") && Contains("no spare row"));
  gpus = working();
  gpus.gpus[1].nvlinks = 12;
  CHECK_THAT(lines_of(gpus, "NVLink"),
             StartsWith("problem ") && Contains("GPU 1 has 12 NVLinks, another one 18"));
}

TEST_CASE("GPUs: which NCCL ranks find") {
  const TorchsNccl older{"2.11", 22809};
  CHECK(judge_nccl({"/env/libnccl.so.2", 22809}, older).verdict == Verdict::ok);
  CHECK_THAT(judge_nccl({"/env/libnccl.so.2", 22809}, older).text,
             Contains("2.28.9, /env/libnccl.so.2") && Contains("a GPU for each rank"));
  const Finding too_old = judge_nccl({"/env/libnccl.so.2", 22809}, {"2.15", 23007});
  CHECK(too_old.verdict == Verdict::problem);
  CHECK_THAT(too_old.text, Contains("LibTorch 2.15 needs 2.30.0 or later"));
  CHECK_THAT(too_old.remedy, Contains("pip install 'torch==2.15.*'") && Contains("NCCL 2.30.7"));
  const TorchsNccl own = torchs_nccl();
  CHECK(judge_nccl({"/env/libnccl.so.2", own.version}).verdict == Verdict::ok);
  CHECK(judge_nccl({"/env/libnccl.so.2", own.version - own.version % 100 - 1}).verdict == Verdict::problem);
  CHECK_THAT(judge_nccl({"/env/libnccl.so.2", 23007}).text, Contains("2.30.7") && Contains("may share"));
  CHECK(judge_nccl({"/usr/lib/libnccl.so.2", 22703}).verdict == Verdict::problem);
  CHECK(judge_nccl({"/usr/lib/libnccl.so.2", 0}).verdict == Verdict::problem);
  CHECK(judge_nccl({}).verdict == Verdict::note);

  // pip's folder in the active environment, where nothing else has loaded an NCCL.
  const TemporaryFolder environment;
  const std::string folder = "lib/python3.12/site-packages/nvidia/nccl/lib";
  std::filesystem::create_directories(environment / folder);
  std::filesystem::copy_file(ZERORUN_FAKE_DRIVER_FOLDER "/libnccl.so.2",
                             environment / (folder + "/libnccl.so.2"));
  ::setenv("VIRTUAL_ENV", (environment / "").parent_path().c_str(), 1);
  const Nccl nccl = read_nccl();
  ::unsetenv("VIRTUAL_ENV");
  CHECK_FALSE(nccl.file.empty());
  CHECK(nccl.version >= 22000);
}
