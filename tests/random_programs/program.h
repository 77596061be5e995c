// A random training program as data: the engine's setup, the model's parameters, and a tree of operations.
// Does not use LibTorch: programs are drawn, printed, read and shrunk in a process that never computes.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <vector>

namespace zerorun::testing {

/// How ranks run, and how their collectives exchange data.
/// hosts_of_...: two hosts of two ranks, connected in two levels, where those of a host share memory.
enum class Place {
  threads,
  sharing_threads,
  hosts_of_threads,
  shared_memory_processes,
  gloo_processes,
  hosts_of_processes
};
enum class Precision { fp32, bf16, fp16 };
enum class Rule { sgd, momentum, adam_w };
enum class InFiles { nothing, states, parameters, both };
/// Where the optimizer comes from: the config, or the program, which gives one of torch::optim to
/// initialize() or to enable_zero().
enum class Source { config, program, enable_zero };

/// Special values of fields that hold a rank.
inline constexpr int kEverybody = -1;
inline constexpr int kNobody = -2;

struct Setup {
  Place place = Place::threads;
  int ranks = 1;   // of a data group
  int groups = 1;  // data groups of the job, each of which runs the program
  int stage = 0;
  Precision precision = Precision::fp32;
  Precision communication = Precision::fp32;
  Precision accumulation = Precision::fp32;
  bool master_from_fp32 = false;
  Source source = Source::config;
  bool marks = false;  // InitializeOptions::marks_gradients
  Rule rule = Rule::sgd;
  bool decay = false;       // weight decay
  int micro_steps = 1;      // gradient_accumulation_steps
  bool recomputes = false;  // the model's blocks, in backward
  bool clips = false;
  bool overlap = true;
  int bucket_numel = 64;
  int max_live = 1000000;  // stage3_max_live_parameters
  int prefetch = 0;        // stage3_prefetch_bucket_size
  int persistence = 0;     // stage 3: parameters with up to this number of elements stay resident
  int scale_power = 4;     // fp16: the initial loss scale is 2 to this power
  bool fixed_scale = false;
  bool has_schedule = false;  // the program passes a schedule: a function, or an LRScheduler of its optimizer
  int schedule_throws_at = -1;  // the applied step in which the schedule throws once; -1: none
  InFiles in_files = InFiles::nothing;
  int max_in_cpu = 0;  // offload_param: number of elements of slices that stay in memory
};

enum class Layout { plain, transposed, channels_last, with_gaps };

struct Parameter {
  std::vector<int> sizes;         // 0 to 2 dimensions of at most 8 elements; channels_last: 4 dimensions
  Layout layout = Layout::plain;  // with_gaps: two dimensions, frozen only
  bool frozen = false;
  bool tied = false;  // registered under two names
  int group = 0;
  int64_t numel() const;
};

enum class Kind {
  forward,           // computes the loss of `slot` from `data` with `parameters`
  failing_forward,   // a forward that throws on `rank`; the program catches it
  backward,          // backward of the loss in `slot`: see BackwardHow
  failing_backward,  // a backward that throws, then zero_grad()
  step,
  evaluate,
  read,        // reads `parameters` by operators, on `rank`
  write,       // writes `parameters` by operators that all ranks run
  scope,       // `body` in a GatheredParameters scope; `rank` is the modifier
  rank_write,  // the modifier of the surrounding scope writes `parameters`
  raw_read,
  raw_write,    // all ranks write the same values through pointers, after synchronize()
  raw_refused,  // access through pointers, which must throw
  no_sync,
  attempt,  // catches exceptions of `body`
  fail,     // throws an exception on `rank`
  synchronize,
  remake,     // destroys the engine, runs `body` without an engine, makes a new engine
  companion,  // makes, uses and destroys a second engine; `how` 3: one whose parameter groups are empty, 4:
              // it saves
  fork,       // forks a child process, which destroys the engine and model that it inherited
  drop,       // drops gradients: see DropHow
  set_gradient,    // puts a gradient of the program into grad() of the first of `parameters`
  clip,            // clip_grad_norm_(); `how` 1: clip_grad_value_()
  gradient,        // reads the gradient of `parameters`; `how` 1: and writes other ones
  flip,            // freezes or unfreezes `parameters`
  boundary,        // set_gradient_accumulation_boundary(`how`)
  offload,         // offload_states(); `how` 1: reload_states()
  group,           // changes parameter group `slot` of the optimizer: see GroupHow
  state,           // reads the first moments of `parameters`; `how` 1: writes them
  optimizer_file,  // torch::save(optimizer); `how` 1: torch::load() of what was saved last
  save,            // checkpoint `slot`; `how` 1: waits for it, 2: without frozen parameters
  load,            // checkpoint `slot` into the same engine
  resume,     // a new engine, with checkpoint `slot` if there is one; `how` 1: first with the groups swapped
  evaluator,  // an engine without an optimizer computes a loss; `how` 1: of checkpoint `slot`
};

enum BackwardHow {
  by_engine,
  by_loss,
  without_scale
};  // without_scale: loss.backward() without engine.scale()
/// by_engine_zero_grad: engine.zero_grad(). The others are what programs do without an engine: zero_grad() of
/// the model, the same with set_to_none = false, zero_grad() of an optimizer, and grad() = {} for all
/// parameters or for `parameters`.
enum DropHow { by_engine_zero_grad, by_model, by_model_zeros, by_optimizer, by_hand, by_hand_some };
enum GroupHow { of_rate, of_decay, of_momentum, more_parameters };

/// The kind determines the meaning of the fields. Fields that a kind does not use keep their default.
struct Operation {
  Kind kind = Kind::step;
  int slot = 0;
  int data = 0;  // determines input or written values
  int rank = kEverybody;
  std::vector<int> parameters = {};
  bool branch = false;   // forward, evaluate: each rank skips a different parameter
  int poison = kNobody;  // forward: the rank whose loss is infinite
  bool retain = false;   // backward: retains the graph
  int how = 0;           // selects a variant of the kind
  std::vector<Operation> body = {};
};

struct Program {
  Setup setup;
  std::vector<Parameter> parameters;
  std::vector<Operation> operations;
};

bool is_block(Kind kind);
/// Kind::failing_backward: whether the backward is loss.backward().
inline bool fails_by_loss(const Operation& operation, const Setup& setup) {
  return operation.how >= 3 && setup.stage >= 2;
}
/// Whether the engine may refuse the operation, so that the plain run notes first whether it does.
inline bool may_be_refused(Kind kind) {
  return kind == Kind::backward || kind == Kind::failing_backward ||
         (kind >= Kind::drop && kind <= Kind::load);
}
const char* name_of(Kind kind);
inline bool in_processes(Place place) {
  return place >= Place::shared_memory_processes;
}
inline bool on_two_levels(Place place) {
  return place == Place::hosts_of_threads || place == Place::hosts_of_processes;
}
inline bool shares_parameters(const Setup& setup) {
  if (on_two_levels(setup.place)) return setup.stage == 1 || setup.stage == 2;
  return setup.ranks > 1 && setup.stage > 0 &&
         (setup.place == Place::sharing_threads || setup.place == Place::shared_memory_processes);
}
/// Whether ranks share the memory of partitioned parameters too.
inline bool shares_partitioned(const Setup& setup) {
  return shares_parameters(setup) && setup.in_files != InFiles::parameters && setup.in_files != InFiles::both;
}
/// How many consecutive ranks sums over ranks add first.
inline int ranks_summed_first(const Setup& setup) {
  return on_two_levels(setup.place) ? 2 : setup.ranks;
}
/// The indices of the parameters in the order in which `rank` uses them.
std::vector<int> uses_of(const Operation& operation, int rank);

// program_text.cpp
std::string to_text(const Program& program);
std::string to_text(const Operation& operation);  // one line, without the body
/// Throws a std::runtime_error that names the line.
Program parse_program(std::string_view text);

// generate.cpp
/// A block is kBlock consecutive seeds. Its programs have the same Place and, in processes, the same numbers
/// of ranks and data groups.
inline constexpr int64_t kBlock = 50;
Program generate(uint64_t seed);

// contract.cpp
/// Returns the program without the operations that the engine's contract does not allow at their place.
Program within_contract(Program program);

// features.cpp
/// Adds 1 to the count of each feature that the program has.
using FeatureCounts = std::map<std::string, int64_t>;
void count_features(const Program& program, FeatureCounts& counts);

}  // namespace zerorun::testing
