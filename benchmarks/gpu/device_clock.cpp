#include "benchmarks/gpu/device_clock.h"

#include <ATen/DeviceAccelerator.h>
#include <c10/core/Event.h>
#include <c10/core/impl/VirtualGuardImpl.h>
#include <dlfcn.h>

#include <array>
#include <chrono>

#include "base/cuda_driver.h"
#include "benchmarks/figures.h"

namespace zerorun {

double DeviceClock::time(const std::function<void()>& body) {
  if (!is_gpu()) return time_on_host(body);
  const c10::Stream stream = c10::impl::VirtualGuardImpl(location().type()).getStream(location());
  // Only events with this flag have a time.
  c10::Event begin(location().type(), c10::EventFlag::BACKEND_DEFAULT);
  c10::Event end(location().type(), c10::EventFlag::BACKEND_DEFAULT);
  begin.record(stream);
  body();
  for (const Lane lane : {Lane::gather, Lane::reduce, Lane::copy}) {
    c10::Event lane_done(location().type());
    lane_done.record(c10::Stream(c10::Stream::UNSAFE, location(), device_->streams().of(lane)));
    lane_done.block(stream);
  }
  end.record(stream);
  end.synchronize();
  return begin.elapsedTime(end);
}

double DeviceClock::time_on_host(const std::function<void()>& body) {
  const auto begin = std::chrono::steady_clock::now();
  body();
  wait();
  return milliseconds_since(begin);
}

void DeviceClock::wait() const {
  if (is_gpu()) at::accelerator::synchronizeDevice(location().index());
}

int64_t DeviceClock::bytes_in_use() const {
  if (!is_gpu()) return static_cast<int64_t>(number_in("/proc/self/status", "VmRSS") * 1024);
  const auto [free, total] = at::accelerator::getMemoryInfo(location().index());
  return static_cast<int64_t>(total) - static_cast<int64_t>(free);
}

void DeviceClock::empty_cache() const {
  if (!is_gpu()) return;
  wait();
  at::accelerator::emptyCache();
}

std::string name_of_card(c10::Device device) {
  if (!device.is_cuda()) return "CPU";
  // The driver numbers GPUs as the CUDA runtime does: both follow CUDA_VISIBLE_DEVICES.
  using Get = int(int* handle, int ordinal);
  using GetName = int(char* name, int length, int handle);
  void* driver = dlopen(kCudaDriver, RTLD_LAZY | RTLD_LOCAL);
  auto* get = driver ? reinterpret_cast<Get*>(dlsym(driver, "cuDeviceGet")) : nullptr;
  auto* get_name = driver ? reinterpret_cast<GetName*>(dlsym(driver, "cuDeviceGetName")) : nullptr;
  int handle = 0;
  std::array<char, 256> name{};
  const bool known = get && get_name && get(&handle, device.index()) == 0 &&
                     get_name(name.data(), static_cast<int>(name.size()), handle) == 0;
  return known ? name.data() : "a GPU whose name the driver does not say";
}

}  // namespace zerorun
