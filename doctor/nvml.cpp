#include "doctor/nvml.h"

#include <dlfcn.h>

namespace zerorun::doctor {

Nvml::Nvml() : library_(::dlopen("libnvidia-ml.so.1", RTLD_NOW | RTLD_LOCAL)) {
  if (!library_) {
    error_ = "the driver's library libnvidia-ml.so.1 is not installed";
  } else if (const int code = call<int()>("nvmlInit_v2"); code != 0) {
    error_ = "NVML says: " + words_of(code);
  }
}

Nvml::~Nvml() {
  if (library_ && error_.empty()) call<int()>("nvmlShutdown");
  if (library_) ::dlclose(library_);
}

std::string Nvml::words_of(int code) const {
  auto* function = reinterpret_cast<const char* (*)(int)>(find("nvmlErrorString"));
  return function && code >= 0 ? function(code) : "it is too old";
}

void* Nvml::find(const char* name) const {
  return ::dlsym(library_, name);
}

}  // namespace zerorun::doctor
