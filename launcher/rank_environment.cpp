#include "launcher/rank_environment.h"

#include <algorithm>
#include <array>
#include <charconv>
#include <map>
#include <optional>
#include <sstream>

#include "base/listening.h"

namespace zerorun {
namespace {

std::string name_of(const std::string& entry) {
  return entry.substr(0, entry.find('='));
}

bool has_value(const std::vector<std::string>& inherited, const std::string& name) {
  return std::any_of(inherited.begin(), inherited.end(), [&](const std::string& entry) {
    return name_of(entry) == name && entry.size() > name.size() + 1;
  });
}

std::string shortest_text(double value) {
  std::array<char, 32> text;
  return {text.data(),
          std::to_chars(text.data(), text.data() + text.size(), value, std::chars_format::fixed).ptr};
}

template <typename Value>
std::string join(const std::vector<Value>& values) {
  std::ostringstream text;
  for (size_t i = 0; i < values.size(); ++i) text << (i ? "," : "") << values[i];
  return text.str();
}

}  // namespace

std::vector<std::string> rank_environment(const std::vector<std::string>& inherited,
                                          const JobEnvironment& job, int rank) {
  // nullopt: the variable is removed from the environment.
  std::map<std::string, std::optional<std::string>> ours = {
      {"RANK", std::to_string(rank)},
      {"LOCAL_RANK", std::to_string(rank)},
      {"WORLD_SIZE", std::to_string(job.world_size)},
      {"LOCAL_WORLD_SIZE", std::to_string(job.world_size)},
      {"LOCAL_SIZE", std::to_string(job.world_size)},
      {"MASTER_ADDR", job.master_addr},
      {"MASTER_PORT", std::to_string(job.master_port)},
      {"ZERORUN_JOB", job.token},
      {kListenVariable, std::nullopt},
      {"ZERORUN_TIMEOUT", shortest_text(job.timeout_seconds)},
      {"ZERORUN_TERMINAL", std::nullopt},
      // If torchrun started the launcher, this variable would make rank 0 use a store that does not exist.
      {"TORCHELASTIC_USE_AGENT_STORE", std::nullopt},
  };
  if (rank == 0) ours[kListenVariable] = std::to_string(job.listening_fd);
  if (!job.device.empty()) ours["ZERORUN_DEVICE"] = job.device;
  if (!job.comm.empty()) ours["ZERORUN_COMM"] = job.comm;
  if (job.terminal) ours["ZERORUN_TERMINAL"] = "1";
  if (!job.visible_devices.empty()) ours["CUDA_VISIBLE_DEVICES"] = job.visible_devices;
  if (!has_value(inherited, "OMP_NUM_THREADS"))
    ours["OMP_NUM_THREADS"] = std::to_string(job.threads_per_rank);
  // Hides LibTorch's warnings and backtraces, which would bury the one message that says what is wrong.
  if (!has_value(inherited, "TORCH_CPP_LOG_LEVEL")) ours["TORCH_CPP_LOG_LEVEL"] = "FATAL";

  std::vector<std::string> environment;
  for (const std::string& entry : inherited) {
    if (!ours.contains(name_of(entry))) environment.push_back(entry);
  }
  for (const auto& [name, value] : ours) {
    if (value) environment.push_back(name + "=" + *value);
  }
  return environment;
}

std::string choose_visible_devices(const std::vector<int>& slots, const std::string& users_list, int gpus,
                                   int ranks) {
  if (!slots.empty()) return join(slots);
  if (gpus == 0) return "";
  std::vector<std::string> devices = split_devices(users_list);
  if (devices.empty()) {
    for (int gpu = 0; gpu < gpus; ++gpu) devices.push_back(std::to_string(gpu));
  }
  devices.resize(std::min<size_t>(devices.size(), ranks));
  return join(devices);
}

std::vector<std::string> split_devices(const std::string& list) {
  std::vector<std::string> devices;
  std::istringstream text(list);
  for (std::string device; std::getline(text, device, ',');) devices.push_back(device);
  return devices;
}

}  // namespace zerorun
