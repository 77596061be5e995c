#include "doctor/gpus.h"

#include <algorithm>

namespace zerorun::doctor {
namespace {

constexpr int kNeededCuda = 13000;  // LibTorch's wheel needs CUDA 13.0
constexpr char kReset[] =
    "look for Xid messages in `dmesg`; reset the GPU (nvidia-smi --gpu-reset) or restart the machine";

std::string cuda_text(int version) {
  return std::to_string(version / 1000) + "." + std::to_string(version % 1000 / 10);
}

std::string gpus_text(size_t count) {
  return std::to_string(count) + (count == 1 ? " GPU" : " GPUs");
}

Finding judge_missing_driver(const Gpus& gpus) {
  const std::string subject = "GPU driver";
  if (gpus.pci.empty()) return {Verdict::ok, subject, "none, ranks run on the CPU"};
  const std::string text = gpus_text(gpus.pci.size()) + " on the PCI bus, ";
  if (std::ranges::any_of(gpus.pci, [](const PciGpu& gpu) { return gpu.driver == "nvidia"; })) {
    return {Verdict::note, subject, text + "which this container was not given: ranks run on the CPU",
            "docker run --gpus all"};
  }
  if (std::ranges::all_of(gpus.pci, [](const PciGpu& gpu) { return gpu.driver == "vfio-pci"; }))
    return {Verdict::ok, subject, text + "for virtual machines: ranks run on the CPU"};
  return {Verdict::problem, subject, text + "and no driver for them", "install NVIDIA's driver, from 580 on"};
}

Finding judge_driver(const Gpus& gpus) {
  const std::string subject = "GPU driver";
  if (gpus.kernel_driver.empty() && gpus.library_driver.empty()) return judge_missing_driver(gpus);
  const std::string version = gpus.library_driver.empty() ? gpus.kernel_driver : gpus.library_driver;
  if (!gpus.kernel_driver.empty() && !gpus.library_driver.empty() &&
      gpus.kernel_driver != gpus.library_driver) {
    return {Verdict::problem, subject,
            "the kernel runs " + gpus.kernel_driver + " and the libraries are of " + gpus.library_driver,
            "restart the machine after an update of the driver"};
  }
  if (gpus.library_driver.empty()) {
    return {Verdict::problem, subject, version + ", but " + gpus.library_error,
            "start the container with the NVIDIA runtime (docker run --gpus all), or install the driver's "
            "libraries"};
  }
  if (gpus.cuda_version != 0 && gpus.cuda_version < kNeededCuda) {
    return {Verdict::problem, subject, version + ", which runs CUDA up to " + cuda_text(gpus.cuda_version),
            "LibTorch's wheel needs CUDA " + cuda_text(kNeededCuda) + ": install a driver from 580 on"};
  }
  return {Verdict::ok, subject,
          version + (gpus.cuda_version ? ", runs CUDA up to " + cuda_text(gpus.cuda_version) : "")};
}

// What hinders this GPU: the reason and the remedy; nothing if it is fit.
std::vector<std::pair<std::string, std::string>> troubles_of(const Gpu& gpu) {
  std::vector<std::pair<std::string, std::string>> troubles;
  if (gpu.uncorrected_errors.value_or(0) > 0) {
    troubles.emplace_back(
        std::to_string(*gpu.uncorrected_errors) + " memory errors that ECC could not correct",
        "reset the GPU (nvidia-smi --gpu-reset); if they come back, have it replaced");
  }
  if (gpu.remap_failed) troubles.emplace_back("no spare row for broken memory", "have the GPU replaced");
  if (gpu.remap_pending)
    troubles.emplace_back("broken memory rows wait to be replaced", "reset the GPU (nvidia-smi --gpu-reset)");
  if (gpu.compute_mode == ComputeMode::prohibited)
    troubles.emplace_back("compute mode Prohibited: no process may use it", "nvidia-smi -c DEFAULT");
  if (gpu.broken_nvlinks > 0 && gpu.nvlinks > 0) {
    troubles.emplace_back(std::to_string(gpu.broken_nvlinks) + " of " +
                              std::to_string(gpu.nvlinks + gpu.broken_nvlinks) + " NVLinks are down",
                          "look at nvidia-smi nvlink --status, and at the service nvidia-fabricmanager");
  }
  return troubles;
}

std::string description_of(const Gpu& gpu) {
  std::string text = gpu.name;
  if (gpu.memory_bytes > 0) text += ", " + bytes_text(static_cast<double>(gpu.memory_bytes));
  if (!gpu.address.empty()) text += ", PCI " + gpu.address;
  if (gpu.ecc_on) text += *gpu.ecc_on ? ", ECC" : ", no ECC";
  if (gpu.nvlinks > 0) text += ", " + std::to_string(gpu.nvlinks) + " NVLinks";
  return text;
}

void judge_gpu(const Gpu& gpu, const std::string& subject, Findings& findings) {
  if (!gpu.error.empty()) {
    findings.push_back({Verdict::problem, subject, "does not answer: " + gpu.error, kReset});
    return;
  }
  const auto troubles = troubles_of(gpu);
  if (troubles.empty()) findings.push_back({Verdict::ok, subject, description_of(gpu)});
  for (const auto& [reason, remedy] : troubles)
    findings.push_back({Verdict::problem, subject, description_of(gpu) + ": " + reason, remedy});
  if (gpu.mig_on.value_or(false)) {
    findings.push_back({Verdict::note, subject,
                        "MIG is on: a process can use one instance of this GPU, and ranks on "
                        "instances exchange data through host memory",
                        "nvidia-smi -mig 0 lets a rank use the whole GPU"});
  }
}

// GPUs in exclusive mode take one process each.
void judge_exclusive(const Gpus& gpus, int local_ranks, Findings& findings) {
  const auto exclusive = std::ranges::count_if(gpus.gpus, [](const Gpu& gpu) {
    return gpu.compute_mode == ComputeMode::one_process || gpu.compute_mode == ComputeMode::one_thread;
  });
  if (exclusive == 0) return;
  const std::string text = gpus_text(exclusive) + " in compute mode Exclusive Process";
  if (local_ranks <= static_cast<int>(gpus.gpus.size())) {
    findings.push_back({Verdict::ok, "compute mode", text + ", one rank each"});
    return;
  }
  findings.push_back(
      {Verdict::problem, "compute mode",
       text + ", and " + std::to_string(local_ranks) + " ranks would share " + gpus_text(gpus.gpus.size()),
       "nvidia-smi -c DEFAULT, or one rank for each GPU"});
}

// GPUs on the PCI bus that the driver's library does not show.
void judge_pci(const Gpus& gpus, Findings& findings) {
  size_t answering = 0;
  for (const PciGpu& gpu : gpus.pci) {
    const std::string name = "PCI " + gpu.address + ": ";
    const bool shown = std::ranges::count(gpus.gpus, gpu.address, &Gpu::address) > 0;
    const bool listed = std::ranges::count(gpus.listed, gpu.address) > 0;
    answering += gpu.answers && shown;
    if (!gpu.answers) {
      findings.push_back({Verdict::problem, "GPUs", name + "does not answer on the bus",
                          "restart the machine; if it happens again, look at its power and its slot"});
    } else if (shown || gpu.driver == "vfio-pci") {
      continue;
    } else if (gpu.driver.empty()) {
      findings.push_back({Verdict::problem, "GPUs", name + "no driver has taken it", "look into `dmesg`"});
    } else if (listed) {
      findings.push_back(
          {Verdict::problem, "GPUs", name + "the kernel's module has it, and it does not answer", kReset});
    } else {
      findings.push_back({Verdict::note, "GPUs", name + "not shown to this process",
                          "normal in a container with some of the host's GPUs; elsewhere look into `dmesg`"});
    }
  }
  if (!gpus.pci.empty()) {
    findings.push_back({Verdict::ok, "GPUs",
                        std::to_string(answering) + " of " + gpus_text(gpus.pci.size()) +
                            " on the PCI bus can be used here"});
  }
}

// Absent NVLinks of one GPU show only beside the others.
void judge_nvlinks(const Gpus& gpus, Findings& findings) {
  if (gpus.gpus.size() < 2) return;
  if (std::ranges::any_of(gpus.gpus, [](const Gpu& gpu) { return !gpu.error.empty(); })) return;
  const auto [least, most] = std::ranges::minmax_element(gpus.gpus, {}, &Gpu::nvlinks);
  if (most->nvlinks == 0) {
    findings.push_back({Verdict::ok, "NVLink", "none: the GPUs exchange data over PCI Express"});
  } else if (least->nvlinks < most->nvlinks) {
    findings.push_back({Verdict::problem, "NVLink",
                        "GPU " + std::to_string(least - gpus.gpus.begin()) + " has " +
                            std::to_string(least->nvlinks) + " NVLinks, another one " +
                            std::to_string(most->nvlinks),
                        "look at nvidia-smi nvlink --status, and at the service nvidia-fabricmanager"});
  } else {
    findings.push_back({Verdict::ok, "NVLink", std::to_string(most->nvlinks) + " links of each GPU are up"});
  }
}

}  // namespace

Findings judge_gpus(const Gpus& gpus, int local_ranks) {
  Findings findings = {judge_driver(gpus)};
  const bool nvml_works = !gpus.library_driver.empty();
  for (size_t number = 0; number < gpus.gpus.size(); ++number)
    judge_gpu(gpus.gpus[number], "GPU " + std::to_string(number), findings);
  if (nvml_works) {
    judge_pci(gpus, findings);
    judge_nvlinks(gpus, findings);
    judge_exclusive(gpus, local_ranks, findings);
  }
  if (gpus.gpus.empty() && nvml_works) {
    findings.push_back({Verdict::problem, "GPUs", "the driver is installed, but shows no GPU",
                        "start the container with --gpus, or look into `dmesg`"});
  }
  if (gpus.xids) {
    for (Finding& finding : judge_xids(*gpus.xids)) findings.push_back(std::move(finding));
  } else if (!gpus.gpus.empty()) {
    findings.push_back({Verdict::note, "GPU errors",
                        "the kernel's log may not be read, so Xids are not known",
                        "sudo zerorun doctor, or sudo dmesg | grep Xid"});
  }
  return findings;
}

}  // namespace zerorun::doctor
