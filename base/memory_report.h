// What the memory of this process is used for, and the report that a lack of memory gets: used, wanted, what
// grew, and what to change. The numbers are on the launcher's board, if there is one, so that it can make the
// report of a rank that the kernel has killed.
//
// [Note: memory report] Engines tell a MemoryMeter their bytes at the beginning of a backward and at the end
// of a step. Where memory is allocated for one of these uses, an AllocatingFor scope is open: if the
// allocation throws, the scope notes its use. A lack of memory that no scope has noted concerns activations
// and the program's own tensors. Any thread.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/rank_file.h"

namespace zerorun {

enum class MemoryUse : uint8_t {
  parameters,
  gradients,
  master,
  moments,
  buckets,
  buffers,
  gathered,
  on_host,
  messages,    // not counted: what collectives need for themselves
  checkpoint,  // not counted: copies of what is not in the file yet
  other,       // the resident memory that nothing above accounts for
};
inline constexpr int kMemoryUses = 11;
using BytesByUse = std::array<int64_t, kMemoryUses>;

/// What a user may change.
enum class MemoryRemedy : uint8_t {
  none,
  stage_1,
  stage_2,
  stage_3,
  bf16,
  bf16_states,
  accumulate_in_bf16,
  states_to_cpu,
  states_to_files,
  parameters_to_files,
  smaller_sub_groups,
  fewer_live,
  less_prefetch,
  less_persistent,
  smaller_reduce_buckets,
  smaller_gather_buckets,
  reduce_each_micro_batch,
  smaller_micro_batch,
  recompute,
  tensor_parallel,
  more_hosts,
  fewer_ranks,
  save_less_often,
  more_memory,
};
using RemediesByUse = std::array<std::array<MemoryRemedy, 3>, kMemoryUses>;

enum class MemoryPhase : int64_t { no_engine, initializing, counted };

/// The numbers of one process. Plain memory: the launcher may read it while the process writes.
struct MemoryNow {
  int64_t rank = 0;     // in the job
  int64_t process = 0;  // whose numbers these are; 0: nobody has written here
  MemoryPhase phase = MemoryPhase::no_engine;
  int64_t on_device = 0;        // whether the bytes are a GPU's, beside which `resident` is the host's
  int64_t step = 0;             // optimizer steps that have ended
  BytesByUse now = {};          // `other` is computed for the report
  BytesByUse before = {};       // at the end of the last step
  int64_t resident = 0;         // of the process; after a failed allocation the most so far
  int64_t resident_before = 0;  // at the end of the last step
  int64_t peak_before = 0;      // the most that was resident until then
  int64_t has_failed = 0;       // an error has told of a lack of memory
  int64_t allocating = 0;       // the use + 1 for which memory is being allocated; 0: none
  int64_t noted = 0;            // whether `use` and `wanted` are those of a failed allocation
  MemoryUse use = {};
  int64_t wanted = 0;  // bytes; 0: not known
  RemediesByUse remedies = {};
};

/// Counts one engine's bytes. The process's numbers are the sum over its engines. Those of an engine that has
/// ended stay until another one counts: an exception often ends the engine before anyone makes the report.
class MemoryMeter {
 public:
  /// `on_device`: the bytes are a GPU's.
  MemoryMeter(int rank, bool on_device, const RemediesByUse& remedies);
  ~MemoryMeter();
  MemoryMeter(const MemoryMeter&) = delete;
  MemoryMeter& operator=(const MemoryMeter&) = delete;

  void update(const BytesByUse& bytes);
  /// The same at the end of an optimizer step. `steps`: how many have ended.
  void end_step(int64_t steps, const BytesByUse& bytes);

 private:
  BytesByUse bytes_ = {};
};

/// During its lifetime this thread allocates memory for `use` and fills it. If an exception ends it, the use
/// is noted, unless an inner scope has noted its own.
class AllocatingFor {
 public:
  explicit AllocatingFor(MemoryUse use, int64_t bytes = 0);
  ~AllocatingFor();
  AllocatingFor(const AllocatingFor&) = delete;
  AllocatingFor& operator=(const AllocatingFor&) = delete;

  /// What this thread allocates for now.
  static std::optional<MemoryUse> current();

 private:
  MemoryUse use_;
  std::optional<MemoryUse> outer_here_;
  int64_t bytes_;
  int exceptions_;
  int64_t notes_;
  int64_t outer_;
};

/// What the report calls a use.
const char* name_of(MemoryUse use);

/// Whether an exception with this text, of the C++ library, LibTorch or Python, says that memory ran out.
bool tells_of_lack_of_memory(std::string_view what);

/// The lines of the report. `allocation_failed`: false if the kernel killed the process instead. Empty if
/// there was no engine.
std::vector<std::string> memory_report(const MemoryNow& memory, bool allocation_failed);

/// The numbers of this process.
MemoryNow memory_now();
/// The report of this process about an exception with this text, with a line break before it. Empty if the
/// text tells of something else, or if the launcher makes the report.
std::string memory_report_of(std::string_view what);

/// The launcher's side.
class MemoryBoard {
 public:
  MemoryBoard() = default;
  explicit MemoryBoard(int ranks);
  std::string path() const { return file_.path(); }
  MemoryNow of(int local_rank) const;

 private:
  RankFile file_;
};

/// The environment variable with the path of the launcher's board.
inline constexpr char kMemoryBoardVariable[] = "ZERORUN_MEMORY_BOARD";

}  // namespace zerorun
