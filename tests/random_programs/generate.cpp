// Draws a random program from a seed.
#include <optional>
#include <random>

#include "tests/random_programs/program.h"

namespace zerorun::testing {
namespace {

// Random numbers. Unlike the standard library's distributions, these are the same on every machine.
class Dice {
 public:
  explicit Dice(uint64_t seed) : engine_(seed * 0x9E3779B97F4A7C15ULL + 1) {}
  int below(int bound) { return static_cast<int>(engine_() % static_cast<uint64_t>(bound)); }
  int between(int low, int high) { return low + below(high - low + 1); }
  bool chance(int percent) { return below(100) < percent; }
  template <typename Value>
  Value one_of(std::initializer_list<Value> values) {
    return values.begin()[below(static_cast<int>(values.size()))];
  }

 private:
  std::mt19937_64 engine_;
};

// Of ten consecutive blocks of seeds, four run their ranks as threads with separate buckets, four as threads
// that share buckets, one as processes over shared memory and one as processes over Gloo. Every other time
// one of those that share buckets, and that over Gloo, is on two hosts.
Place place_of(uint64_t block) {
  using enum Place;
  if (block % 20 == 9) return hosts_of_threads;
  if (block % 20 == 17) return hosts_of_processes;
  static constexpr Place kPlaces[] = {
      sharing_threads, threads,         shared_memory_processes, threads, sharing_threads,
      threads,         sharing_threads, gloo_processes,          threads, sharing_threads};
  return kPlaces[block % 10];
}

// In processes they are the same in a block, so that its programs run in the same processes: two every other
// time over each transport. enable_zero() takes no mesh.
void draw_groups(Setup& setup, uint64_t seed) {
  const uint64_t block = seed / kBlock;
  const bool processes = in_processes(setup.place);
  setup.groups = (processes ? (block / 5 + block / 20) % 2 == 0 : seed % 5 == 3) ? 2 : 1;
  if (processes && setup.groups > 1 && setup.source == Source::enable_zero) setup.source = Source::program;
}

Setup draw_setup(Dice& dice, uint64_t block) {
  Setup setup;
  setup.place = place_of(block);
  const int block_ranks = 2 + static_cast<int>(block / 10 % 2);
  setup.ranks = in_processes(setup.place) ? block_ranks : dice.one_of({1, 2, 2, 2, 3, 3});
  if (on_two_levels(setup.place)) setup.ranks = 4;
  setup.stage = dice.one_of({0, 1, 2, 3, 3});
  setup.precision = dice.one_of({Precision::fp32, Precision::fp32, Precision::bf16, Precision::fp16});
  setup.communication =
      dice.chance(75) ? setup.precision : dice.one_of({Precision::fp32, Precision::bf16, Precision::fp16});
  setup.accumulation = dice.chance(75) ? Precision::fp32 : setup.precision;
  setup.master_from_fp32 = dice.chance(30);
  if (dice.chance(30)) setup.source = dice.one_of({Source::program, Source::program, Source::enable_zero});
  setup.marks = dice.chance(50);
  setup.rule = dice.one_of({Rule::sgd, Rule::momentum, Rule::momentum, Rule::adam_w});
  setup.decay = dice.chance(30);
  setup.micro_steps = dice.one_of({1, 1, 1, 2, 3});
  setup.clips = dice.chance(25);
  setup.overlap = dice.chance(70);
  setup.bucket_numel = dice.one_of({1, 16, 64, 1000});
  setup.max_live = dice.one_of({0, 16, 64, 1000000});
  setup.prefetch = dice.one_of({0, 16, 1000});
  setup.persistence = dice.chance(25) ? 8 : 0;
  setup.scale_power = dice.one_of({0, 4, 12, 16, 20});
  setup.fixed_scale = dice.chance(30);
  setup.has_schedule = dice.chance(20);
  if (dice.chance(20)) setup.schedule_throws_at = dice.between(1, 2);
  if (setup.stage > 0 && dice.chance(40)) setup.in_files = InFiles::states;
  if (setup.stage == 3 && dice.chance(40))
    setup.in_files = setup.in_files == InFiles::states ? InFiles::both : InFiles::parameters;
  setup.max_in_cpu = dice.one_of({0, 0, 20});
  return setup;
}

Parameter draw_parameter(Dice& dice) {
  Parameter parameter;
  parameter.frozen = dice.chance(20);
  const int shape = dice.below(20);
  if (shape < 13) {
    parameter.sizes = {dice.between(1, 8), dice.between(1, 8)};
    if (dice.chance(parameter.frozen ? 50 : 20)) parameter.layout = Layout::transposed;
    if (parameter.frozen && shape < 3) parameter.layout = Layout::with_gaps;
  } else if (shape < 15) {
    parameter.sizes = {dice.between(1, 8)};
  } else if (shape < 16) {
    parameter.sizes = {2, 3, 2, 2};
    parameter.layout = Layout::channels_last;
  } else if (shape < 18) {
    parameter.sizes = {dice.chance(50) ? 0 : dice.between(1, 8), 0};
    if (dice.chance(50)) std::swap(parameter.sizes[0], parameter.sizes[1]);
  }
  parameter.tied = dice.chance(10);
  parameter.group = dice.chance(20) ? 1 : 0;
  return parameter;
}

class Operations {
 public:
  Operations(Dice& dice, const Program& program) : dice_(dice), program_(program) {}

  std::vector<Operation> draw(int count, int depth) {
    std::vector<Operation> drawn;
    for (int i = 0; i < count; ++i) add(drawn, depth);
    return drawn;
  }

  /// `before_step`: between the backward and the step.
  void add_training(std::vector<Operation>& to, const std::optional<Operation>& before_step = {}) {
    const int slot = dice_.below(3);
    to.push_back(forward(slot));
    const int extra = dice_.chance(25) ? 1 : 0;
    for (int i = 0; i < extra; ++i)
      to.push_back({.kind = Kind::backward, .slot = slot, .retain = true, .how = backward_how()});
    to.push_back({.kind = Kind::backward, .slot = slot, .retain = dice_.chance(20), .how = backward_how()});
    if (dice_.chance(15)) to.push_back(any_of_access());
    if (dice_.chance(15)) to.push_back(change_of_gradients());
    if (before_step) to.push_back(*before_step);
    if (dice_.chance(85)) to.push_back({.kind = Kind::step});
  }

 private:
  std::vector<int> some_parameters(int most) {
    std::vector<int> chosen;
    const int count = dice_.between(1, most);
    for (int i = 0; i < count; ++i)
      chosen.push_back(dice_.below(static_cast<int>(program_.parameters.size())));
    return chosen;
  }

  int some_rank() { return dice_.below(program_.setup.ranks); }
  int everybody_or_one() { return dice_.chance(50) ? kEverybody : some_rank(); }

  Operation forward(int slot) {
    Operation operation{
        .kind = Kind::forward, .slot = slot, .data = dice_.below(1000), .parameters = some_parameters(5)};
    operation.branch = dice_.chance(25);
    if (dice_.chance(6)) operation.poison = everybody_or_one();
    return operation;
  }

  int backward_how() { return dice_.chance(5) ? without_scale : dice_.below(2); }

  Operation change(Kind kind, int variants) {
    return {.kind = kind,
            .slot = dice_.below(2),
            .data = dice_.below(1000),
            .parameters = some_parameters(3),
            .how = dice_.below(variants)};
  }

  bool has_optimizer() const { return program_.setup.source != Source::config; }

  // Of the optimizer's settings. `refused`: one that the next step refuses, if the program has an optimizer.
  Operation change_of_group(bool refused) {
    Operation operation = change(Kind::group, 2);
    if (refused && has_optimizer()) operation.how += of_momentum;
    return operation;
  }

  Operation change_of_gradients() {
    return dice_.one_of({change(Kind::drop, 6), change(Kind::drop, 6), change(Kind::set_gradient, 1),
                         change(Kind::clip, 2), change(Kind::gradient, 2), change(Kind::boundary, 2),
                         change_of_group(/*refused=*/true)});
  }

  Operation change_of_engine() {
    return dice_.one_of(
        {change(Kind::flip, 1), change(Kind::flip, 1), change(Kind::offload, 2),
         change_of_group(/*refused=*/false), change(Kind::state, 2), change(Kind::boundary, 2),
         change(has_optimizer() ? Kind::optimizer_file : Kind::state, 2), change(Kind::evaluator, 2)});
  }

  // A change that the engine refuses to go on with, and often the opposite.
  void add_change(std::vector<Operation>& to) {
    to.push_back(dice_.chance(30) ? change_of_gradients() : change_of_engine());
    const Operation changed = to.back();
    if (dice_.chance(50)) add_training(to);
    if (dice_.chance(20)) return;
    to.push_back(changed);
    if (changed.kind == Kind::offload || changed.kind == Kind::boundary ||
        changed.kind == Kind::optimizer_file)
      to.back().how = 1;
    if (changed.kind == Kind::set_gradient) to.back() = {.kind = Kind::drop, .how = by_model};
  }

  // A save, more training, and the checkpoint in the same engine or in a new one.
  void add_restart(std::vector<Operation>& to) {
    if (has_optimizer() && dice_.chance(25)) {
      to.push_back({.kind = Kind::optimizer_file, .how = 0});
      add_training(to);
      to.push_back({.kind = Kind::optimizer_file, .how = 1});
    }
    if (dice_.chance(15)) {
      add_training(to, Operation{.kind = Kind::boundary, .how = 0});  // behind the last backward of a window
    } else if (dice_.chance(60)) {
      add_training(to);
    }
    const Operation save = change(Kind::save, 3);
    to.push_back(save);
    if (dice_.chance(10)) to.push_back({.kind = Kind::boundary, .how = 1});
    if (dice_.chance(60)) add_training(to);
    if (dice_.chance(30)) to.push_back(any_of_access());
    if (dice_.chance(20)) to.push_back(change(Kind::companion, 5));
    to.push_back(change(dice_.one_of({Kind::load, Kind::resume, Kind::resume, Kind::evaluator}), 2));
    to.back().slot = save.slot;
    if (dice_.chance(80)) add_training(to);
  }

  Operation any_of_access() {
    Operation operation{.data = dice_.below(1000), .parameters = some_parameters(3)};
    operation.kind =
        dice_.one_of({Kind::read, Kind::read, Kind::write, Kind::write, Kind::evaluate, Kind::raw_read,
                      Kind::raw_write, Kind::raw_refused, Kind::synchronize, Kind::failing_forward});
    operation.rank = everybody_or_one();
    operation.branch = dice_.chance(25);
    operation.how = dice_.below(4);
    return operation;
  }

  void add(std::vector<Operation>& to, int depth) {
    const int what = dice_.below(100);
    if (what < 28) {
      add_training(to);
    } else if (what < 35) {
      const int slot = dice_.below(3);
      to.push_back(dice_.one_of(
          {forward(slot),
           Operation{.kind = Kind::backward, .slot = slot, .retain = true, .how = backward_how()},
           Operation{.kind = Kind::step}}));
    } else if (what < 50) {
      to.push_back(any_of_access());
    } else if (what < 54) {
      to.push_back({.kind = Kind::synchronize});
      to.push_back(any_of_access());
      to.back().kind = dice_.one_of({Kind::raw_read, Kind::raw_write, Kind::read, Kind::raw_read});
    } else if (what < 72) {
      if (depth < 3) add_block(to, depth + 1);
    } else if (what < 76) {
      add_saving(to);
    } else if (what < 86) {
      add_change(to);
    } else if (what < 95) {
      add_restart(to);
    } else {
      add_rare(to);
    }
  }

  void add_block(std::vector<Operation>& to, int depth) {
    Operation block{.kind = dice_.one_of({Kind::scope, Kind::scope, Kind::scope, Kind::no_sync, Kind::no_sync,
                                          Kind::attempt, Kind::attempt})};
    if (block.kind == Kind::scope) {
      block.parameters = some_parameters(3);
      block.rank = dice_.chance(50) ? kNobody : some_rank();
      if (block.rank != kNobody && dice_.chance(80)) block.body.push_back(rank_write(block.parameters));
      if (dice_.chance(40)) block.body.push_back(inside(block.parameters));
    }
    if (block.kind == Kind::no_sync && dice_.chance(70)) add_training(block.body);
    for (Operation& more : draw(dice_.between(0, 2), depth)) block.body.push_back(std::move(more));
    if (block.kind == Kind::attempt || dice_.chance(20)) {
      Operation fail{.kind = Kind::fail, .rank = everybody_or_one()};
      auto* inner = &block.body;
      // Adds the exception at the end of this block. If this block ends with a nested block, the exception
      // may go to the end of the nested block instead.
      while (!inner->empty() && is_block(inner->back().kind) && dice_.chance(70)) inner = &inner->back().body;
      if (dice_.chance(70)) inner->push_back(fail);
    }
    to.push_back(std::move(block));
    if (dice_.chance(30)) to.push_back({.kind = Kind::step});
  }

  // One rank reads parameters within a scope, as if to save them, and often throws afterwards.
  void add_saving(std::vector<Operation>& to) {
    // Often a write precedes the scope. Other ranks may not have received this write yet.
    if (dice_.chance(60)) {
      to.push_back({.kind = Kind::write, .data = dice_.below(1000), .parameters = some_parameters(3)});
    }
    Operation scope{.kind = Kind::scope, .rank = kNobody, .parameters = some_parameters(3)};
    const int rank = some_rank();
    scope.body.push_back(inside(scope.parameters));
    scope.body.back().kind = dice_.one_of({Kind::read, Kind::raw_read});
    scope.body.back().rank = rank;
    if (dice_.chance(60)) scope.body.push_back({.kind = Kind::fail, .rank = rank});
    to.push_back({.kind = Kind::attempt, .body = {std::move(scope)}});
  }

  Operation rank_write(const std::vector<int>& held) {
    return {.kind = Kind::rank_write,
            .data = dice_.below(1000),
            .parameters = {held[dice_.below(static_cast<int>(held.size()))]},
            .how = dice_.below(2)};
  }

  Operation inside(const std::vector<int>& held) {
    return {.kind = dice_.one_of({Kind::read, Kind::raw_read, Kind::write}),
            .data = dice_.below(1000),
            .rank = everybody_or_one(),
            .parameters = {held[dice_.below(static_cast<int>(held.size()))]}};
  }

  void add_rare(std::vector<Operation>& to) {
    Operation operation{.kind = dice_.one_of({Kind::remake, Kind::remake, Kind::failing_backward,
                                              Kind::companion, Kind::fork, Kind::fork})};
    operation.data = dice_.below(1000);
    operation.how = operation.kind == Kind::failing_backward
                        ? dice_.below(6)
                        : dice_.below(operation.kind == Kind::companion ? 5 : 3);
    if (operation.kind == Kind::failing_backward) operation.parameters = some_parameters(4);
    if (operation.kind == Kind::remake) {
      const int count = dice_.below(3);
      for (int i = 0; i < count; ++i) operation.body.push_back(any_of_access());
    }
    to.push_back(std::move(operation));
  }

  Dice& dice_;
  const Program& program_;
};

}  // namespace

Program generate(uint64_t seed) {
  Dice dice(seed);
  Program program;
  program.setup = draw_setup(dice, seed / kBlock);
  draw_groups(program.setup, seed);
  program.setup.recomputes = seed % 7 < 2;
  const int parameters = dice.between(1, 6);
  for (int i = 0; i < parameters; ++i) program.parameters.push_back(draw_parameter(dice));
  Operations operations(dice, program);
  program.operations = operations.draw(dice.between(2, 9), 0);
  if (dice.chance(70)) operations.add_training(program.operations);
  return within_contract(std::move(program));
}

}  // namespace zerorun::testing
