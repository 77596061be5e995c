#include "base/memory_report.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <exception>
#include <mutex>
#include <utility>

namespace zerorun {
namespace {

// Says whose file it is, and how its entries look.
std::string name_of_file() {
  return "zerorun memory " + std::to_string(sizeof(MemoryNow));
}

constexpr std::array<const char*, kMemoryUses> kNames = {
    "parameters",
    "gradients",
    "master weights",
    "optimizer states",
    "buffers of buckets and files",
    "buffers and frozen parameters",
    "gathered parameters",
    "states on the host",
    "collectives",
    "copies for a checkpoint",
    "activations and the rest",
};

const char* text_of(MemoryRemedy remedy) {
  switch (remedy) {
    case MemoryRemedy::none:
      break;
    case MemoryRemedy::stage_1:
      return "zero_optimization.stage 1, which divides optimizer states among ranks";
    case MemoryRemedy::stage_2:
      return "zero_optimization.stage 2, which divides gradients among ranks";
    case MemoryRemedy::stage_3:
      return "zero_optimization.stage 3, which divides parameters among ranks";
    case MemoryRemedy::bf16:
      return "bf16.enabled";
    case MemoryRemedy::bf16_states:
      return "bf16.bf16_optimizer_states";
    case MemoryRemedy::accumulate_in_bf16:
      return "data_types.grad_accum_dtype \"bf16\"";
    case MemoryRemedy::states_to_cpu:
      return "zero_optimization.offload_optimizer.device \"cpu\"";
    case MemoryRemedy::states_to_files:
      return "zero_optimization.offload_optimizer.device \"nvme\"";
    case MemoryRemedy::parameters_to_files:
      return "zero_optimization.offload_param.device \"nvme\", at stage 3";
    case MemoryRemedy::smaller_sub_groups:
      return "a smaller zero_optimization.sub_group_size";
    case MemoryRemedy::fewer_live:
      return "a smaller zero_optimization.stage3_max_live_parameters";
    case MemoryRemedy::less_prefetch:
      return "a smaller zero_optimization.stage3_prefetch_bucket_size";
    case MemoryRemedy::less_persistent:
      return "a smaller zero_optimization.stage3_param_persistence_threshold";
    case MemoryRemedy::smaller_reduce_buckets:
      return "a smaller zero_optimization.reduce_bucket_size";
    case MemoryRemedy::smaller_gather_buckets:
      return "a smaller zero_optimization.allgather_bucket_size";
    case MemoryRemedy::reduce_each_micro_batch:
      return "pipeline.reduce \"micro_batch\"";
    case MemoryRemedy::smaller_micro_batch:
      return "a smaller train_micro_batch_size_per_gpu, with more gradient_accumulation_steps";
    case MemoryRemedy::recompute:
      return "zerorun.recompute, which computes activations again instead of keeping them";
    case MemoryRemedy::tensor_parallel:
      return "tensor_parallel.autotp_size, which splits layers among ranks";
    case MemoryRemedy::more_hosts:
      return "more hosts";
    case MemoryRemedy::fewer_ranks:
      return "fewer ranks on this host";
    case MemoryRemedy::save_less_often:
      return "saving less often, or a call of wait_for_checkpoint() before the next step";
    case MemoryRemedy::more_memory:
      return "a higher memory limit";
  }
  return "";
}

int64_t resident_bytes() {
  static const int file = ::open("/proc/self/statm", O_RDONLY | O_CLOEXEC);
  std::array<char, 128> text{};
  if (file < 0 || ::pread(file, text.data(), text.size() - 1, 0) <= 0) return 0;
  long long pages = 0;
  return std::sscanf(text.data(), "%*d %lld", &pages) == 1 ? pages * ::sysconf(_SC_PAGESIZE) : 0;
}

// The process's numbers, on the launcher's board or else in memory of its own.
struct Numbers {
  std::mutex mutex;
  MemoryNow own{.process = ::getpid()};
  MemoryNow* now = &own;
  BytesByUse ended = {};  // of engines that have ended
  bool on_board = false;

  Numbers() {
    const char* local_rank = std::getenv("LOCAL_RANK");
    const UniqueFd file = open_rank_file(kMemoryBoardVariable, name_of_file().c_str());
    if (local_rank == nullptr || !file.is_open()) return;
    const size_t place = static_cast<size_t>(std::max(std::atoi(local_rank), 0)) * sizeof(MemoryNow);
    const off_t size = ::lseek(file.get(), 0, SEEK_END);
    if (size < static_cast<off_t>(place + sizeof(MemoryNow))) return;
    void* all = ::mmap(nullptr, static_cast<size_t>(size), PROT_READ | PROT_WRITE, MAP_SHARED, file.get(), 0);
    if (all == MAP_FAILED) return;
    auto* entry = reinterpret_cast<MemoryNow*>(static_cast<std::byte*>(all) + place);
    // A rank's child process may have inherited the variable.
    const auto owner = static_cast<pid_t>(entry->process);
    if (owner > 0 && (::kill(owner, 0) == 0 || errno != ESRCH)) return;
    now = entry;
    *now = {.process = ::getpid()};
    on_board = true;
  }

  void forget_ended() {
    for (int use = 0; use < kMemoryUses; ++use) now->now[use] -= ended[use];
    ended = {};
  }
};

// Never destroyed: engines may outlive static objects.
Numbers& numbers() {
  static auto* all = new Numbers();
  return *all;
}

std::string mebibytes(int64_t bytes) {
  std::array<char, 32> text{};
  std::snprintf(text.data(), text.size(), "%.1f", static_cast<double>(bytes) / (1 << 20));
  return text.data();
}

std::string row(const char* name, int64_t now, int64_t before) {
  std::array<char, 96> text{};
  std::snprintf(text.data(), text.size(), "  %-30s %12s %12s", name, mebibytes(now).c_str(),
                mebibytes(before).c_str());
  return text.data();
}

// The most that was ever resident.
int64_t peak_bytes() {
  struct rusage usage {};
  return ::getrusage(RUSAGE_SELF, &usage) == 0 ? int64_t{usage.ru_maxrss} << 10 : 0;
}

// What was freed on the exception's way counts, if there was never more before.
void note_failure_to_allocate() {
  Numbers& all = numbers();
  const std::lock_guard lock(all.mutex);
  const int64_t peak = peak_bytes();
  all.now->resident = peak > all.now->peak_before ? peak : resident_bytes();
  all.now->has_failed = 1;
}

int64_t rest_of(int64_t resident, const BytesByUse& bytes) {
  int64_t counted = 0;
  for (int use = 0; use < static_cast<int>(MemoryUse::other); ++use) counted += bytes[use];
  return std::max<int64_t>(resident - counted, 0);
}

thread_local int64_t notes = 0;                  // that scopes of this thread have made
thread_local std::optional<MemoryUse> use_here;  // of the innermost scope of this thread

}  // namespace

MemoryMeter::MemoryMeter(int rank, bool on_device, const RemediesByUse& remedies) {
  Numbers& all = numbers();
  const std::lock_guard lock(all.mutex);
  all.forget_ended();
  all.now->rank = rank;
  if (all.now->phase == MemoryPhase::no_engine) all.now->phase = MemoryPhase::initializing;
  all.now->on_device = on_device ? 1 : 0;
  all.now->remedies = remedies;
}

MemoryMeter::~MemoryMeter() {
  Numbers& all = numbers();
  const std::lock_guard lock(all.mutex);
  for (int use = 0; use < kMemoryUses; ++use) all.ended[use] += bytes_[use];
}

void MemoryMeter::update(const BytesByUse& bytes) {
  Numbers& all = numbers();
  const std::lock_guard lock(all.mutex);
  all.forget_ended();
  for (int use = 0; use < kMemoryUses; ++use) all.now->now[use] += bytes[use] - bytes_[use];
  bytes_ = bytes;
  all.now->resident = resident_bytes();
  all.now->phase = MemoryPhase::counted;
  all.now->noted = all.now->has_failed = 0;  // an earlier failure, which the program went on after
}

void MemoryMeter::end_step(int64_t steps, const BytesByUse& bytes) {
  update(bytes);
  Numbers& all = numbers();
  const std::lock_guard lock(all.mutex);
  all.now->step = steps;
  all.now->before = all.now->now;
  all.now->resident_before = all.now->resident;
  all.now->peak_before = peak_bytes();
}

AllocatingFor::AllocatingFor(MemoryUse use, int64_t bytes)
    : use_(use),
      outer_here_(std::exchange(use_here, use)),
      bytes_(bytes),
      exceptions_(std::uncaught_exceptions()),
      notes_(notes) {
  Numbers& all = numbers();
  const std::lock_guard lock(all.mutex);
  outer_ = std::exchange(all.now->allocating, static_cast<int64_t>(use) + 1);
}

std::optional<MemoryUse> AllocatingFor::current() {
  return use_here;
}

AllocatingFor::~AllocatingFor() {
  use_here = outer_here_;
  Numbers& all = numbers();
  const std::lock_guard lock(all.mutex);
  all.now->allocating = outer_;
  if (std::uncaught_exceptions() == exceptions_ || notes != notes_) return;
  ++notes;
  all.now->use = use_;
  all.now->wanted = bytes_;
  all.now->noted = 1;
}

const char* name_of(MemoryUse use) {
  return kNames[static_cast<size_t>(use)];
}

bool tells_of_lack_of_memory(std::string_view what) {
  constexpr std::array kWords = {"std::bad_alloc", "Cannot allocate memory", "can't allocate memory",
                                 "CUDA out of memory", "CUDA error: out of memory", "MemoryError",
                                 // ZeroRun's own errors, of the host's, a GPU's and page-locked memory
                                 "bytes of memory left", "page-locked memory left",
                                 "cudaErrorMemoryAllocation"};
  return std::ranges::any_of(kWords,
                             [&](const char* words) { return what.find(words) != std::string_view::npos; });
}

std::vector<std::string> memory_report(const MemoryNow& memory, bool allocation_failed) {
  if (memory.phase == MemoryPhase::no_engine) return {};
  constexpr auto kOther = static_cast<int>(MemoryUse::other);
  constexpr int kUnknown = -1;
  std::vector<std::string> lines;
  int wanted = kUnknown;
  if (memory.phase == MemoryPhase::counted) {
    BytesByUse now = memory.now;
    BytesByUse before = memory.before;
    if (memory.on_device == 0) {
      now[kOther] = rest_of(memory.resident, memory.now);
      before[kOther] = rest_of(memory.resident_before, memory.before);
    }
    lines.push_back("memory of rank " + std::to_string(memory.rank) + " in MiB, in step " +
                    std::to_string(memory.step + 1) +
                    " when it was last counted, and after the step before:");
    int64_t most = 0;
    for (int use = 0; use < kMemoryUses; ++use) {
      if (now[use] - before[use] > most) {
        most = now[use] - before[use];
        wanted = use;
      }
      if (now[use] != 0 || before[use] != 0) lines.push_back(row(kNames[use], now[use], before[use]));
    }
    lines.push_back(row("resident memory of the process", memory.resident, memory.resident_before));
    if (most > 0)
      lines.push_back(std::string("grew most: ") + kNames[wanted] + ", by " + mebibytes(most) + " MiB");
  } else {
    lines.push_back("memory of rank " + std::to_string(memory.rank) + ": it ran out in initialize()");
  }
  if (memory.noted != 0 && allocation_failed) {
    wanted = std::min(static_cast<int>(memory.use), kOther);
    const std::string bytes = memory.wanted > 0 ? mebibytes(memory.wanted) + " MiB " : "";
    lines.push_back("memory was wanted: " + bytes + "for " + kNames[wanted]);
  } else if (allocation_failed) {
    wanted = kOther;
    lines.push_back(std::string("memory was wanted: for ") + kNames[wanted]);
  } else if (memory.allocating > 0 && memory.allocating <= kMemoryUses) {
    wanted = static_cast<int>(memory.allocating) - 1;
    lines.push_back(std::string("memory was being filled: for ") + kNames[wanted]);
  }
  if (wanted == kUnknown) return lines;
  std::string remedies;
  for (const MemoryRemedy remedy : memory.remedies[wanted])
    if (remedy != MemoryRemedy::none)
      remedies += (remedies.empty() ? "" : "; ") + std::string(text_of(remedy));
  if (!remedies.empty()) lines.push_back("what may help: " + remedies);
  return lines;
}

MemoryNow memory_now() {
  Numbers& all = numbers();
  const std::lock_guard lock(all.mutex);
  return *all.now;
}

std::string memory_report_of(std::string_view what) {
  if (!tells_of_lack_of_memory(what)) return {};
  note_failure_to_allocate();
  if (numbers().on_board) return {};
  std::string text;
  for (const std::string& line : memory_report(memory_now(), true)) text += '\n' + line;
  return text;
}

MemoryBoard::MemoryBoard(int ranks) : file_(name_of_file().c_str(), sizeof(MemoryNow), ranks) {}

MemoryNow MemoryBoard::of(int local_rank) const {
  MemoryNow memory;
  return file_.read(local_rank, &memory) ? memory : MemoryNow{};
}

}  // namespace zerorun
