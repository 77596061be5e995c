// Removes the operations of a program that the engine's contract (docs/limitations.md, engine/engine.h,
// engine/gathered_parameters.h) does not allow at their place. The remaining program must give the same
// results as plain LibTorch. Operations that the engine must refuse with a named error stay: the plain run
// notes the error (expected_errors.h), or that neither run does the operation.
#include <algorithm>
#include <array>
#include <set>
#include <utility>

#include "tests/random_programs/program.h"

namespace zerorun::testing {
namespace {

constexpr int kSlots = 3;

void correct(Setup& setup) {
  setup.ranks = std::clamp(setup.ranks, 1, 4);
  setup.groups = std::clamp(setup.groups, 1, 2);
  if (setup.source == Source::enable_zero) setup.groups = 1;
  if (on_two_levels(setup.place)) {
    setup.groups = 1;
    if (setup.ranks < 4)
      setup.place = in_processes(setup.place) ? Place::shared_memory_processes : Place::sharing_threads;
  }
  if (setup.source != Source::config) {  // its results are compared with a tolerance, which is for float32
    setup.precision = setup.communication = setup.accumulation = Precision::fp32;
    setup.in_files = InFiles::nothing;
    setup.schedule_throws_at = -1;
  }
  if (setup.precision != Precision::fp32 && setup.communication != setup.precision) {
    setup.communication = Precision::fp32;
  }
  if (setup.accumulation != setup.precision) setup.accumulation = Precision::fp32;
  if (setup.precision == Precision::fp32) setup.master_from_fp32 = false;
  if (setup.precision != Precision::fp16)
    std::tie(setup.scale_power, setup.fixed_scale) = std::pair(4, false);
  if (setup.stage < 3) {
    std::tie(setup.max_live, setup.prefetch, setup.persistence) = std::tuple(1000000, 0, 0);
  }
  if (setup.source == Source::enable_zero) {
    setup.micro_steps = 1;
    setup.marks = setup.has_schedule = false;
    if (setup.stage == 3) setup.persistence = 100000;  // the config's default
  }
  if (!setup.has_schedule) setup.schedule_throws_at = -1;
}

class Contract {
 public:
  explicit Contract(const Program& program) : program_(program), setup_(program.setup) {}

  std::vector<Operation> filter(const std::vector<Operation>& operations) {
    std::vector<Operation> kept;
    for (Operation operation : operations) {
      if (!drop_bad_parameters(operation) || !allows(operation)) continue;
      kept.push_back(std::move(operation));
      if (unwinding_) break;
    }
    return kept;
  }

 private:
  struct Scope {
    std::vector<int> parameters;
    int modifier;
    int attempts;              // number of open attempts when the scope was opened
    bool written = false;      // an operator wrote in the scope
    bool raw_written = false;  // the modifier wrote through pointers in the scope
  };

  bool drop_bad_parameters(Operation& operation) const {
    const auto count = static_cast<int>(program_.parameters.size());
    std::erase_if(operation.parameters, [&](int index) { return index < 0 || index >= count; });
    if (operation.rank >= setup_.ranks) operation.rank %= setup_.ranks;
    if (operation.poison >= setup_.ranks) operation.poison %= setup_.ranks;
    return operation.slot >= 0 && operation.slot < kSlots;
  }

  bool allows(Operation& operation) {
    if (!engine_) return allows_without_engine(operation);
    switch (operation.kind) {
      case Kind::forward:
      case Kind::failing_forward:
      case Kind::evaluate:
      case Kind::backward:
      case Kind::step:
        return allows_training(operation);
      case Kind::read:
        return !operation.parameters.empty() &&
               (operation.rank == kEverybody || may_differ() || all_held(operation.parameters));
      case Kind::write:
      case Kind::rank_write:
      case Kind::raw_read:
      case Kind::raw_write:
      case Kind::raw_refused:
        return allows_access(operation);
      case Kind::synchronize:
        may_be_open_ = true;
        synchronized_ = setup_.stage < 3;
        return true;
      case Kind::scope:
      case Kind::no_sync:
      case Kind::attempt:
        return allows_block(operation);
      case Kind::fail:
        return allows_fail(operation);
      case Kind::failing_backward:
        operation.branch = false;
        if (!free() || !trains(operation)) return false;
        has_gradients_ = false;
        return true;
      case Kind::drop:
      case Kind::set_gradient:
      case Kind::clip:
      case Kind::gradient:
      case Kind::flip:
      case Kind::boundary:
      case Kind::offload:
      case Kind::group:
      case Kind::state:
      case Kind::optimizer_file:
        return allows_change(operation);
      case Kind::save:
        return setup_.groups == 1 && allows_checkpoint(operation);
      case Kind::load:
      case Kind::resume:
        return allows_checkpoint(operation);
      case Kind::evaluator:
        return free() && !operation.parameters.empty();
      case Kind::remake:
        return allows_remake(operation);
      case Kind::companion:
        return free() && (setup_.groups == 1 || operation.how != 4);  // 4 saves
      case Kind::fork:
        return free() && setup_.place == Place::shared_memory_processes && setup_.ranks > 1;
    }
    return false;
  }

  bool allows_training(Operation& operation) {
    if (operation.kind == Kind::step) {
      if (is_unsure_) {
        synchronized_ = false;
        graphs_.fill(false);
        return true;
      }
      if (!free_of_blocks() || !has_gradients_) return true;  // the engine must refuse it
      has_gradients_ = pending_ = synchronized_ = false;
      if (++micro_steps_ % setup_.micro_steps == 0) graphs_.fill(false);
      return true;
    }
    if (operation.kind == Kind::backward) {
      if (!graphs_[operation.slot]) return false;
      graphs_[operation.slot] = operation.retain;
      has_gradients_ = true;
      return true;
    }
    operation.branch = operation.branch && may_differ();
    if (operation.kind == Kind::failing_forward && !may_differ()) operation.rank = kEverybody;
    if (operation.kind != Kind::forward) return !operation.parameters.empty();
    graphs_[operation.slot] = trains(operation);
    return graphs_[operation.slot];
  }

  bool allows_access(Operation& operation) {
    const bool raw =
        operation.kind != Kind::write && !(operation.kind == Kind::rank_write && operation.how == 0);
    if (raw) std::erase_if(operation.parameters, [&](int index) { return !has_memory(index); });
    if (operation.kind == Kind::raw_refused) {
      std::erase_if(operation.parameters, [&](int index) { return !refuses_raw(index); });
      return !operation.parameters.empty() && scopes_.empty();
    }
    if (operation.parameters.empty()) return false;
    if (operation.kind == Kind::raw_read) {
      return setup_.stage == 0 || synchronized_ || all_held(operation.parameters);
    }
    operation.rank = kEverybody;
    if (operation.kind == Kind::raw_write) {
      if (setup_.precision != Precision::fp32 || !scopes_.empty()) return false;
      if (setup_.stage != 0 && !synchronized_) return false;
    }
    if (operation.kind == Kind::rank_write) {
      if (scopes_.empty() || scopes_.back().modifier == kNobody) return false;
      if (!holds(scopes_.back(), operation.parameters)) return false;
      operation.rank = scopes_.back().modifier;
    }
    const bool by_modifier =
        operation.kind == Kind::rank_write && operation.how != 0 && setup_.ranks > 1 &&
        std::ranges::all_of(operation.parameters, [&](int index) { return is_partitioned(index); });
    for (Scope& scope : scopes_) {
      if (by_modifier && &scope == &scopes_.back()) {
        scope.raw_written = true;
      } else {
        scope.written = true;
      }
    }
    if (operation.kind == Kind::write && setup_.stage == 3) pending_ = true;
    graphs_.fill(false);
    return true;
  }

  bool allows_block(Operation& operation) {
    if (operation.kind == Kind::scope) {
      if (operation.parameters.empty()) return false;
      if (operation.rank == kEverybody) operation.rank = kNobody;
      scopes_.push_back({operation.parameters, operation.rank, attempts_});
      operation.body = filter(operation.body);
      scopes_.pop_back();
      if (operation.rank != kNobody) graphs_.fill(false);  // the end of the scope counts as a write
    } else if (operation.kind == Kind::no_sync) {
      ++no_syncs_;
      operation.body = filter(operation.body);
      --no_syncs_;
    } else {
      ++attempts_;
      operation.body = filter(operation.body);
      --attempts_;
      unwinding_ = false;
    }
    return !operation.body.empty() || operation.kind == Kind::scope;
  }

  // When an exception leaves a scope, the contract does not say whether writes by operators in the scope are
  // kept, and whether writes to memory are lost if an outer scope still holds that memory. So the exception
  // is not allowed after either kind of write.
  bool allows_fail(Operation& operation) {
    if (attempts_ == 0) return false;
    if (setup_.ranks == 1) operation.rank = kEverybody;
    const bool everywhere = operation.rank == kEverybody;
    const bool held =
        std::ranges::any_of(scopes_, [&](const Scope& scope) { return scope.attempts < attempts_; });
    for (const Scope& scope : scopes_) {
      if (scope.attempts < attempts_) continue;
      if (scope.written || (scope.raw_written && held)) return false;
      if (!everywhere && (scope.raw_written || scope.modifier != kNobody)) return false;
    }
    unwinding_ = true;
    return true;
  }

  // Only the plain run knows exactly what these have for consequences. Here only bounds are known from then
  // on.
  bool allows_change(Operation& operation) {
    const bool is_collective =
        operation.kind == Kind::gradient || operation.kind == Kind::offload || operation.kind == Kind::state;
    if (is_collective && !free()) return false;
    const bool of_trained = operation.kind == Kind::gradient || operation.kind == Kind::state ||
                            operation.kind == Kind::set_gradient;
    std::erase_if(operation.parameters,
                  [&](int index) { return of_trained && program_.parameters[index].frozen; });
    if (operation.parameters.empty() && (of_trained || operation.kind == Kind::flip)) return false;
    // The tally remembers a gradient that overflows in 16 bits, also if it is replaced.
    if (setup_.precision == Precision::fp16 || setup_.communication != Precision::fp32)
      operation.how = operation.kind == Kind::gradient ? 0 : operation.how;
    if (operation.kind == Kind::flip) {
      for (int index : operation.parameters) {
        if (!flipped_.erase(index)) flipped_.insert(index);
      }
      graphs_.fill(false);
    }
    is_unsure_ = true;
    return true;
  }

  bool allows_checkpoint(Operation& operation) {
    if (!free() || setup_.schedule_throws_at >= 0) return false;
    synchronized_ = false;
    may_be_open_ = is_unsure_ = true;
    if (operation.kind == Kind::save) return true;
    graphs_.fill(false);
    if (operation.kind == Kind::resume) flipped_.clear();
    return true;
  }

  bool allows_remake(Operation& operation) {
    if (!free()) return false;
    const bool takes_over = setup_.stage < 3 && setup_.source != Source::enable_zero;
    if (operation.how == 1 && !takes_over) operation.how = 0;
    if (!in_processes(setup_.place) && operation.how == 2) operation.how = 0;
    if (setup_.stage == 3 || operation.how == 1) operation.body.clear();
    engine_ = false;
    operation.body = filter(operation.body);
    engine_ = true;
    begin_again();
    return true;
  }

  // Without an engine, each rank has its own parameters, so only reads and writes are allowed.
  bool allows_without_engine(Operation& operation) const {
    const bool raw = operation.kind == Kind::raw_read || operation.kind == Kind::raw_write;
    if (!raw && operation.kind != Kind::read && operation.kind != Kind::write) return false;
    if (raw) std::erase_if(operation.parameters, [&](int index) { return !has_memory(index); });
    return !operation.parameters.empty();
  }

  void begin_again() {
    graphs_.fill(false);
    has_gradients_ = pending_ = synchronized_ = may_be_open_ = is_unsure_ = false;
    flipped_.clear();
    micro_steps_ = 0;
  }

  bool free_of_blocks() const { return scopes_.empty() && no_syncs_ == 0; }
  bool free() const { return free_of_blocks() && attempts_ == 0; }
  bool may_differ() const {
    return setup_.stage < 3 || setup_.ranks == 1 || (shares_partitioned(setup_) && !pending_);
  }
  bool trains(const Operation& operation) const {
    for (int rank = 0; rank < setup_.ranks; ++rank) {
      const bool trained = std::ranges::any_of(uses_of(operation, rank), [&](int index) {
        return !program_.parameters[index].frozen && !flipped_.contains(index);
      });
      if (!trained) return false;
    }
    return true;
  }
  static bool holds(const Scope& scope, const std::vector<int>& parameters) {
    return std::ranges::all_of(parameters,
                               [&](int index) { return std::ranges::count(scope.parameters, index) > 0; });
  }
  bool all_held(const std::vector<int>& parameters) const {
    return std::ranges::all_of(parameters, [&](int index) {
      return std::ranges::any_of(scopes_, [&](const Scope& scope) { return holds(scope, {index}); });
    });
  }
  // Whether the parameter has elements, without gaps between them.
  bool has_memory(int index) const {
    const Parameter& parameter = program_.parameters[index];
    return parameter.numel() > 0 && parameter.layout != Layout::with_gaps;
  }
  bool is_partitioned(int index) const {
    const Parameter& parameter = program_.parameters[index];
    return setup_.stage == 3 && parameter.layout != Layout::with_gaps &&
           parameter.numel() > setup_.persistence;
  }
  bool refuses_raw(int index) const {
    const Parameter& parameter = program_.parameters[index];
    if (is_partitioned(index)) return true;
    return shares_parameters(setup_) && !may_be_open_ && !parameter.frozen;
  }

  const Program& program_;
  const Setup& setup_;
  bool engine_ = true;
  std::array<bool, kSlots> graphs_{};  // by slot: whether backward may use the slot's graph
  bool has_gradients_ = false;
  int micro_steps_ = 0;
  bool is_unsure_ = false;     // whether a step() updates, and whether there are gradients
  std::set<int> flipped_;      // parameters that are frozen or unfrozen after initialize()
  bool pending_ = false;       // at stage 3: other ranks may not have received a write yet
  bool synchronized_ = false;  // raw access is allowed outside of scopes too
  bool may_be_open_ = false;   // the engine need not refuse raw access to whole buckets
  std::vector<Scope> scopes_;
  int no_syncs_ = 0;
  int attempts_ = 0;
  bool unwinding_ = false;  // an exception leaves the open blocks
};

void correct(std::vector<Parameter>& parameters) {
  if (parameters.empty()) parameters.push_back({.sizes = {4, 4}});
  if (std::ranges::all_of(parameters, &Parameter::frozen)) parameters.front().frozen = false;
  for (Parameter& parameter : parameters) {
    if (parameter.layout == Layout::transposed && parameter.sizes.size() != 2)
      parameter.layout = Layout::plain;
    if (parameter.layout == Layout::with_gaps && (parameter.sizes.size() != 2 || !parameter.frozen))
      parameter.layout = Layout::plain;
    if (parameter.sizes.size() == 4) parameter.layout = Layout::channels_last;
  }
}

}  // namespace

Program within_contract(Program program) {
  correct(program.setup);
  correct(program.parameters);
  program.operations = Contract(program).filter(program.operations);
  return program;
}

}  // namespace zerorun::testing
