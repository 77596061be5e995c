// A random training program as data: how the engine is set up, the model's parameters, and what is done, as a
// tree of operations. No LibTorch here: programs are drawn, kept within the engine's contract, printed, read
// and shrunk by a process that never computes.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <vector>

namespace zerorun::testing {

/// How ranks are run, and what carries their collectives.
enum class Place { threads, sharing_threads, shared_memory_processes, gloo_processes };
enum class Precision { fp32, bf16, fp16 };
enum class Rule { sgd, momentum, adam_w };
enum class InFiles { nothing, states, parameters, both };

/// Who does something.
inline constexpr int kEverybody = -1;
inline constexpr int kNobody = -2;

struct Setup {
  Place place = Place::threads;
  int ranks = 1;
  int stage = 0;
  Precision precision = Precision::fp32;
  Precision communication = Precision::fp32;
  Precision accumulation = Precision::fp32;
  bool master_from_fp32 = false;
  Rule rule = Rule::sgd;
  bool decay = false;   // weight decay
  int micro_steps = 1;  // gradient_accumulation_steps
  bool clips = false;
  bool overlap = true;
  int bucket_numel = 64;
  int max_live = 1000000;  // stage 3
  int prefetch = 0;        // stage 3
  int persistence = 0;     // stage 3: parameters up to this size stay
  int scale_power = 4;     // fp16: of the first loss scale
  bool fixed_scale = false;
  bool has_schedule = false;    // a function of the program
  int schedule_throws_at = -1;  // the applied step that it is asked for then; -1: never
  InFiles in_files = InFiles::nothing;
  int max_in_cpu = 0;  // elements of slices that stay in memory all the same
};

enum class Layout { plain, transposed, channels_last };

struct Parameter {
  std::vector<int> sizes;  // 0 to 2 dimensions of at most 8; channels_last: 4
  Layout layout = Layout::plain;
  bool frozen = false;
  bool tied = false;  // registered under two names
  int group = 0;
  int64_t numel() const;
};

enum class Kind {
  forward,           // of `slot`: a loss from `data` through `parameters`
  failing_forward,   // an exception in it, on `rank`, caught
  backward,          // of the loss in `slot`
  failing_backward,  // an exception in it; the engine is made anew
  step,
  evaluate,
  read,        // `parameters`, by operators, on `rank`
  write,       // into `parameters`, by operators that all ranks run
  scope,       // GatheredParameters; `rank` modifies
  rank_write,  // into `parameters`, by the modifier of the scope around it
  raw_read,
  raw_write,    // the same on all ranks, after synchronize
  raw_refused,  // raw access where it must throw
  no_sync,
  attempt,  // where exceptions are caught
  fail,     // an exception, on `rank`
  synchronize,
  remake,     // the engine goes; `body` runs without one; another one is made
  companion,  // a second engine beside it, for a moment
  fork,       // a child process that destroys what it inherited
};

/// What a field means depends on the kind; those that have no meaning keep their default.
struct Operation {
  Kind kind = Kind::step;
  int slot = 0;
  int data = 0;  // from which values are made
  int rank = kEverybody;
  std::vector<int> parameters = {};
  bool branch = false;   // forward, evaluate: each rank leaves out another parameter
  int poison = kNobody;  // forward: whose loss is infinite
  bool retain = false;   // backward
  int how = 0;           // which of several ways
  std::vector<Operation> body = {};
};

struct Program {
  Setup setup;
  std::vector<Parameter> parameters;
  std::vector<Operation> operations;
};

bool is_block(Kind kind);
const char* name_of(Kind kind);
inline bool in_processes(Place place) {
  return place >= Place::shared_memory_processes;
}
inline bool shares_parameters(const Setup& setup) {
  return setup.ranks > 1 && setup.stage > 0 &&
         (setup.place == Place::sharing_threads || setup.place == Place::shared_memory_processes);
}
/// Whether that goes for partitioned parameters too.
inline bool shares_partitioned(const Setup& setup) {
  return shares_parameters(setup) && setup.in_files != InFiles::parameters && setup.in_files != InFiles::both;
}
/// Parameters in the order in which `rank` uses them.
std::vector<int> uses_of(const Operation& operation, int rank);

// program_text.cpp
std::string to_text(const Program& program);
std::string to_text(const Operation& operation);  // one line, without its body
/// Throws std::runtime_error naming the line.
Program parse_program(std::string_view text);

// generate.cpp
/// Programs whose seeds have the same block run in the same place, processes on as many ranks.
inline constexpr int64_t kBlock = 50;
Program generate(uint64_t seed);

// contract.cpp
/// The program without the operations that the engine's contract does not allow there.
Program within_contract(Program program);

// features.cpp
/// Counts what the programs that ran had in them.
using FeatureCounts = std::map<std::string, int64_t>;
void count_features(const Program& program, FeatureCounts& counts);

}  // namespace zerorun::testing
