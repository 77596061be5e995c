#include "doctor/nccl.h"

#include <dlfcn.h>

#include <cstdlib>
#include <filesystem>
#include <system_error>
#include <vector>

namespace zerorun::doctor {
namespace {

constexpr char kName[] = "libnccl.so.2";
constexpr int kSharesGpus = 23000;  // from 2.30 on, several ranks may use one GPU

std::vector<std::string> candidates() {
  std::vector<std::string> files = {kName};
  const char* environment = std::getenv("VIRTUAL_ENV");
  std::error_code error;
  for (std::filesystem::directory_iterator
           entry(std::string(environment != nullptr ? environment : "") + "/lib", error),
       end;
       environment != nullptr && !error && entry != end; entry.increment(error)) {
    const std::string folder = entry->path();
    if (entry->path().filename().string().starts_with("python"))
      files.push_back(folder + "/site-packages/nvidia/nccl/lib/" + kName);
  }
  return files;
}

std::string text_of(int version) {
  return std::to_string(version / 10000) + "." + std::to_string(version / 100 % 100) + "." +
         std::to_string(version % 100);
}

}  // namespace

Nccl read_nccl() {
  void* library = ::dlopen(kName, RTLD_NOLOAD | RTLD_LAZY);
  for (const std::string& file : candidates()) {
    if (!library) library = ::dlopen(file.c_str(), RTLD_LAZY | RTLD_LOCAL);
  }
  if (!library) return {};
  Nccl nccl = {.file = kName, .version = 0};
  auto* ask = reinterpret_cast<int (*)(int*)>(::dlsym(library, "ncclGetVersion"));
  Dl_info place{};
  if (ask && ::dladdr(reinterpret_cast<void*>(ask), &place) != 0 && place.dli_fname)
    nccl.file = place.dli_fname;
  if (ask && ask(&nccl.version) != 0) nccl.version = 0;
  return nccl;  // stays loaded: NCCL does not support being unloaded
}

TorchsNccl torchs_nccl() {
  return {ZERORUN_TORCH_MINOR, ZERORUN_TORCH_NCCL};
}

Finding judge_nccl(const Nccl& nccl, const TorchsNccl& torchs) {
  const int needed = torchs.version / 100 * 100;
  const std::string remedy = "pip install 'torch==" + torchs.torch +
                             ".*' in an environment and activate it: that brings NCCL " +
                             text_of(torchs.version);
  if (nccl.file.empty()) {
    return {Verdict::note, "NCCL", "none in the linker's search path or in the active environment",
            "ranks still find one beside LibTorch; else " + remedy};
  }
  if (nccl.version == 0) return {Verdict::problem, "NCCL", nccl.file + " does not say its version", remedy};
  const std::string text = text_of(nccl.version) + ", " + nccl.file;
  if (nccl.version < needed)
    return {Verdict::problem, "NCCL",
            text + ": LibTorch " + torchs.torch + " needs " + text_of(needed) + " or later", remedy};
  return {Verdict::ok, "NCCL",
          text + (nccl.version < kSharesGpus ? ", needs a GPU for each rank" : ", ranks may share GPUs")};
}

}  // namespace zerorun::doctor
