#include "doctor/host_system.h"

#include <gnu/libc-version.h>
#include <sys/mman.h>
#include <sys/statvfs.h>
#include <sys/syscall.h>
#include <sys/timex.h>
#include <sys/utsname.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <ctime>
#include <filesystem>
#include <fstream>
#include <string_view>

#include "base/unique_fd.h"

extern char** environ;

namespace zerorun::doctor {
namespace {

// Finds the first line of the file `path` that begins with `name`. Returns the value on it, without quotes.
std::string value_in(const std::string& path, std::string_view name) {
  std::ifstream file(path);
  for (std::string line; std::getline(file, line);) {
    if (!line.starts_with(name)) continue;
    const size_t start = line.find_first_not_of(" \t:=\"", name.size());
    if (start == std::string::npos) return {};
    return line.substr(start, line.find_last_not_of(" \t\"") - start + 1);
  }
  return {};
}

std::string time_in_utc() {
  const std::time_t now = std::time(nullptr);
  std::tm parts{};
  std::array<char, 32> text{};
  ::gmtime_r(&now, &parts);
  std::strftime(text.data(), text.size(), "%Y-%m-%d %H:%M:%S", &parts);
  return text.data();
}

std::string last_error() {
  return std::strerror(errno);
}

// Makes and maps a memory file, as ranks do to share memory. Returns the error; empty if it works.
std::string try_memory_file() {
  constexpr size_t kSize = 1 << 16;
  const UniqueFd file(::memfd_create("zerorun_doctor", MFD_CLOEXEC));
  if (!file.is_open() || ::ftruncate(file.get(), kSize) != 0) return last_error();
  void* memory = ::mmap(nullptr, kSize, PROT_READ | PROT_WRITE, MAP_SHARED, file.get(), 0);
  if (memory == MAP_FAILED) return last_error();
  std::memset(memory, 1, kSize);
  ::munmap(memory, kSize);
  return {};
}

std::string try_io_uring() {
  std::array<char, 256> parameters{};  // room for a struct io_uring_params (120 bytes), all zeros
  const UniqueFd ring(static_cast<int>(::syscall(SYS_io_uring_setup, 2, parameters.data())));
  return ring.is_open() ? "" : last_error();
}

std::optional<int64_t> space_of(const std::string& folder, bool all) {
  struct statvfs disk {};
  if (::statvfs(folder.c_str(), &disk) != 0) return std::nullopt;
  return static_cast<int64_t>(disk.f_frsize) * static_cast<int64_t>(all ? disk.f_blocks : disk.f_bavail);
}

std::vector<std::pair<std::string, int64_t>> free_space() {
  std::vector<std::pair<std::string, int64_t>> folders;
  std::error_code error;
  for (const auto& folder :
       {std::filesystem::current_path(error), std::filesystem::temp_directory_path(error)}) {
    const auto bytes = space_of(folder, false);
    const bool seen =
        std::ranges::count(folders, folder.string(), &std::pair<std::string, int64_t>::first) > 0;
    if (bytes && !seen) folders.emplace_back(folder, *bytes);
  }
  return folders;
}

// The environment variables that jobs read, except ZERORUN_JOB: it is the job's secret.
std::vector<std::pair<std::string, std::string>> settings_in_environment() {
  std::vector<std::pair<std::string, std::string>> settings;
  for (char** entry = environ; entry && *entry; ++entry) {
    const std::string text = *entry;
    const size_t equals = text.find('=');
    if (equals == std::string::npos) continue;
    const std::string name = text.substr(0, equals);
    const bool heeded = std::ranges::any_of(
        std::array{"ZERORUN_", "NCCL_", "GLOO_", "CUDA_", "OMP_", "KMP_", "MASTER_", "TORCH_", "MKL_"},
        [&](const char* prefix) { return name.starts_with(prefix); });
    if (heeded && name != "ZERORUN_JOB") settings.emplace_back(name, text.substr(equals + 1));
  }
  std::ranges::sort(settings);
  return settings;
}

Finding judge_shm(int64_t bytes, int gpus) {
  constexpr int64_t kEnough = int64_t{256} << 20;
  const std::string text = bytes_text(static_cast<double>(bytes)) + " in /dev/shm";
  if (gpus < 2) return {Verdict::ok, "shared files", text + ", which only NCCL uses, between GPUs"};
  if (bytes >= kEnough) return {Verdict::ok, "shared files", text + ", which NCCL uses between GPUs"};
  return {Verdict::problem, "shared files",
          text + " are too little for NCCL between " + std::to_string(gpus) + " GPUs",
          "docker run --shm-size=1g (or mount -o remount,size=1G /dev/shm)"};
}

Finding judge_space(const std::string& folder, int64_t bytes) {
  const std::string text = bytes_text(static_cast<double>(bytes)) + " free in " + folder;
  if (bytes == 0)
    return {Verdict::problem, "disk", text, "free some: checkpoints and logs cannot be written"};
  if (bytes < int64_t{1} << 30) return {Verdict::note, "disk", text, "too little for a checkpoint"};
  return {Verdict::ok, "disk", text};
}

}  // namespace

HostSystem read_host_system(const std::string& root) {
  HostSystem host;
  utsname names{};
  if (::uname(&names) == 0)
    host.kernel = std::string(names.sysname) + " " + names.release + " " + names.machine;
  host.system = value_in(root + "/etc/os-release", "PRETTY_NAME");
  host.libc = ::gnu_get_libc_version();
  host.processor = value_in(root + "/proc/cpuinfo", "model name");
  std::getline(std::ifstream(root + "/sys/devices/system/node/online"), host.nodes);
  host.time = time_in_utc();
  timex clock{};
  host.clock_synchronized = ::adjtimex(&clock) != TIME_ERROR;
  host.memfd_error = try_memory_file();
  host.io_uring_error = try_io_uring();
  host.shm_bytes = space_of(root + "/dev/shm", true);
  host.free_bytes = free_space();
  host.settings = settings_in_environment();
  return host;
}

Findings judge_host_system(const HostSystem& system, int gpus) {
  Findings findings = {
      {Verdict::ok, "system", system.kernel + ", " + system.system + ", glibc " + system.libc},
      {Verdict::ok, "processor",
       system.processor + (system.nodes.empty() ? "" : ", NUMA nodes " + system.nodes)}};
  if (system.clock_synchronized) {
    findings.push_back({Verdict::ok, "clock", system.time + " UTC"});
  } else {
    findings.push_back({Verdict::note, "clock",
                        system.time + " UTC, and no time service keeps it synchronized",
                        "run chrony or systemd-timesyncd, or the logs of the hosts cannot be compared"});
  }
  if (system.memfd_error.empty()) {
    findings.push_back({Verdict::ok, "shared memory", "memory files work"});
  } else {
    findings.push_back({Verdict::problem, "shared memory", "memory files do not work: " + system.memfd_error,
                        "allow memfd_create in the container's seccomp profile; ranks use Gloo until then"});
  }
  if (system.shm_bytes) findings.push_back(judge_shm(*system.shm_bytes, gpus));
  if (system.io_uring_error.empty()) {
    findings.push_back({Verdict::ok, "io_uring", "works"});
  } else {
    findings.push_back({Verdict::note, "io_uring", "not allowed: " + system.io_uring_error,
                        "state in files is read and written by threads; a container's seccomp profile or "
                        "kernel.io_uring_disabled may allow it"});
  }
  for (const auto& [folder, bytes] : system.free_bytes) findings.push_back(judge_space(folder, bytes));
  for (const auto& [name, value] : system.settings)
    findings.push_back({Verdict::ok, "setting", name + "=" + value});
  return findings;
}

Finding build_versions() {
  return {Verdict::ok, "built with", "ZeroRun " ZERORUN_VERSION ", " ZERORUN_BUILT_WITH};
}

}  // namespace zerorun::doctor
