#include "launcher/rank_environment.h"

#include <algorithm>
#include <array>
#include <charconv>

#include "base/activity_board.h"
#include "base/full_world.h"
#include "base/held_memory.h"
#include "base/join_board.h"
#include "base/listening.h"
#include "base/memory_report.h"
#include "base/nccl_variables.h"
#include "base/run_log_board.h"
#include "base/timeline.h"
#include "launcher/restarts.h"

namespace zerorun::launcher {
namespace {

std::string name_of(const std::string& entry) {
  return entry.substr(0, entry.find('='));
}

bool has_value(const std::vector<std::string>& inherited, const std::string& name) {
  return std::any_of(inherited.begin(), inherited.end(), [&](const std::string& entry) {
    return name_of(entry) == name && entry.size() > name.size() + 1;
  });
}

bool is_set(const std::vector<std::string>& inherited, const std::string& name) {
  return std::ranges::find(inherited, name, name_of) != inherited.end();
}

std::string shortest_text(double value) {
  std::array<char, 32> text;
  return {text.data(),
          std::to_chars(text.data(), text.data() + text.size(), value, std::chars_format::fixed).ptr};
}

int threads_of(const JobEnvironment& job, int local_rank) {
  return job.bindings.empty() ? job.threads_per_rank : job.bindings.at(local_rank).threads;
}

}  // namespace

std::map<std::string, std::optional<std::string>> rank_variables(const std::vector<std::string>& inherited,
                                                                 const JobEnvironment& job, int rank) {
  const Placement& placement = job.placement;
  const int node = placement.node_of(rank);
  const std::string local_world_size = std::to_string(placement.local_world_size(node));
  std::map<std::string, std::optional<std::string>> ours = {
      {"RANK", std::to_string(rank)},
      {"LOCAL_RANK", std::to_string(placement.local_rank(rank))},
      {"WORLD_SIZE", std::to_string(placement.world_size())},
      {"LOCAL_WORLD_SIZE", local_world_size},
      {"LOCAL_SIZE", local_world_size},
      {"CROSS_RANK", std::to_string(node)},
      {"CROSS_SIZE", std::to_string(placement.nodes().size())},
      {"MASTER_ADDR", job.master_addr},
      {"MASTER_PORT", std::to_string(job.master_port)},
      {"ZERORUN_JOB", job.token},
      {kListenVariable, std::nullopt},
      {kBoardVariable, std::nullopt},
      {kActivityBoardVariable, std::nullopt},
      {kMemoryBoardVariable, std::nullopt},
      {kRunLogBoardVariable, std::nullopt},
      {kTimelineRingVariable, std::nullopt},
      {"ZERORUN_TIMEOUT", shortest_text(job.timeout_seconds)},
      {"ZERORUN_TERMINAL", std::nullopt},
      {kRestartsVariable, std::nullopt},
      {kHeldMemoryVariable, std::nullopt},
      {kFullWorldVariable, std::nullopt},
      // If torchrun started the launcher, this variable would make rank 0 use a store that does not exist.
      {"TORCHELASTIC_USE_AGENT_STORE", std::nullopt},
  };
  if (rank == 0) ours[kListenVariable] = std::to_string(job.listening_fd);
  if (!job.board.empty()) ours[kBoardVariable] = job.board;
  if (!job.activity_board.empty()) ours[kActivityBoardVariable] = job.activity_board;
  if (!job.memory_board.empty()) ours[kMemoryBoardVariable] = job.memory_board;
  if (rank == 0 && !job.run_log_board.empty()) ours[kRunLogBoardVariable] = job.run_log_board;
  if (!job.timeline.empty()) {
    ours[kTimelineVariable] = job.timeline;
    ours[kTimelineStepsVariable] = job.timeline_steps;
  }
  const auto local_rank = static_cast<size_t>(placement.local_rank(rank));
  if (local_rank < job.timeline_rings.size() && !job.timeline_rings[local_rank].empty())
    ours[kTimelineRingVariable] = job.timeline_rings[local_rank];
  if (!job.device.empty()) ours["ZERORUN_DEVICE"] = job.device;
  if (!job.comm.empty()) ours["ZERORUN_COMM"] = job.comm;
  if (job.terminal) ours["ZERORUN_TERMINAL"] = "1";
  if (job.restarts > 0) ours[kRestartsVariable] = std::to_string(job.restarts);
  if (!job.held_memory.empty()) ours[kHeldMemoryVariable] = job.held_memory;
  if (job.full_world_size > 0) ours[kFullWorldVariable] = std::to_string(job.full_world_size);
  if (!job.visible_devices.empty()) ours["CUDA_VISIBLE_DEVICES"] = job.visible_devices;
  if (!has_value(inherited, "OMP_NUM_THREADS"))
    ours["OMP_NUM_THREADS"] = std::to_string(threads_of(job, placement.local_rank(rank)));
  for (const char* name : kNcclVariables) {  // a rank may use NCCL before it loads ZeroRun
    if (job.device != "cpu" && !is_set(inherited, name)) ours[name] = "1";
  }
  // Hides LibTorch's warnings and backtraces, which would bury the one message that says what is wrong.
  if (!has_value(inherited, "TORCH_CPP_LOG_LEVEL")) ours["TORCH_CPP_LOG_LEVEL"] = "FATAL";
  return ours;
}

std::vector<std::string> rank_environment(const std::vector<std::string>& inherited,
                                          const JobEnvironment& job, int rank) {
  const auto ours = rank_variables(inherited, job, rank);
  std::vector<std::string> environment;
  for (const std::string& entry : inherited) {
    if (!ours.contains(name_of(entry))) environment.push_back(entry);
  }
  for (const auto& [name, value] : ours) {
    if (value) environment.push_back(name + "=" + *value);
  }
  return environment;
}

}  // namespace zerorun::launcher
