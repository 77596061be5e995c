#include "tests/random_programs/shrink.h"

#include <algorithm>
#include <functional>
#include <utility>

namespace zerorun::testing {
namespace {

using Change = std::function<bool(Program&)>;  // returns false if it changes nothing

int count(const std::vector<Operation>& operations) {
  int total = 0;
  for (const Operation& operation : operations) total += 1 + count(operation.body);
  return total;
}

// Finds operation number `number` in printing order. Returns the list that contains it, and sets `position`
// to its index in the list.
std::vector<Operation>* find(std::vector<Operation>& operations, int& number, size_t& position) {
  for (position = 0; position < operations.size(); ++position) {
    if (number-- == 0) return &operations;
    size_t inner = 0;
    if (auto* found = find(operations[position].body, number, inner)) {
      position = inner;
      return found;
    }
  }
  return nullptr;
}

Operation& at(Program& program, int number) {
  size_t position = 0;
  auto* list = find(program.operations, number, position);
  return (*list)[position];
}

Change without(int first, int length) {
  return [=](Program& program) {
    int number = first;
    size_t position = 0;
    auto* list = find(program.operations, number, position);
    if (!list) return false;
    const size_t end = std::min(list->size(), position + static_cast<size_t>(length));
    list->erase(list->begin() + static_cast<long>(position), list->begin() + static_cast<long>(end));
    return true;
  };
}

// The change that replaces a block by its body.
Change opened(int block) {
  return [=](Program& program) {
    int number = block;
    size_t position = 0;
    auto* list = find(program.operations, number, position);
    if (!list || (*list)[position].body.empty()) return false;
    const std::vector<Operation> body = std::move((*list)[position].body);
    list->erase(list->begin() + static_cast<long>(position));
    list->insert(list->begin() + static_cast<long>(position), body.begin(), body.end());
    return true;
  };
}

template <typename Record, typename Value>
bool set(Record& record, Value Record::*field, Value value) {
  return std::exchange(record.*field, value) != value;
}

template <typename Value>
Change set_up(Value Setup::*field, Value value) {
  return [=](Program& program) { return set(program.setup, field, value); };
}

template <typename Value>
Change of_operation(int number, Value Operation::*field, Value value) {
  return [=](Program& program) { return set(at(program, number), field, value); };
}

void add_setup(std::vector<Change>& changes, const Setup& setup) {
  changes.push_back(set_up(&Setup::place, Place::threads));
  if (setup.place == Place::hosts_of_processes)
    changes.push_back(set_up(&Setup::place, Place::hosts_of_threads));
  if (setup.place == Place::shared_memory_processes || on_two_levels(setup.place))
    changes.push_back(set_up(&Setup::place, Place::sharing_threads));
  changes.push_back(set_up(&Setup::groups, 1));
  changes.push_back(set_up(&Setup::recomputes, false));
  for (int ranks = 1; ranks < setup.ranks; ++ranks) changes.push_back(set_up(&Setup::ranks, ranks));
  for (int stage = 0; stage < setup.stage; ++stage) changes.push_back(set_up(&Setup::stage, stage));
  changes.push_back([](Program& program) {
    Setup& own = program.setup;
    const bool changed = own.precision != Precision::fp32;
    own.precision = own.communication = own.accumulation = Precision::fp32;
    return changed;
  });
  changes.push_back(
      [](Program& program) { return set(program.setup, &Setup::communication, program.setup.precision); });
  changes.push_back(set_up(&Setup::accumulation, Precision::fp32));
  changes.push_back(set_up(&Setup::master_from_fp32, false));
  changes.push_back(set_up(&Setup::source, Source::config));
  changes.push_back(set_up(&Setup::marks, false));
  changes.push_back(set_up(&Setup::rule, Rule::sgd));
  changes.push_back(set_up(&Setup::decay, false));
  for (int steps = 1; steps < setup.micro_steps; ++steps)
    changes.push_back(set_up(&Setup::micro_steps, steps));
  changes.push_back(set_up(&Setup::clips, false));
  changes.push_back(set_up(&Setup::overlap, true));
  changes.push_back(set_up(&Setup::max_live, 1000000));
  changes.push_back(set_up(&Setup::prefetch, 0));
  for (const InFiles fewer : {InFiles::nothing, InFiles::states, InFiles::parameters})
    if (setup.in_files > fewer) changes.push_back(set_up(&Setup::in_files, fewer));
  changes.push_back(set_up(&Setup::persistence, 0));
  changes.push_back(set_up(&Setup::scale_power, 4));
  changes.push_back(set_up(&Setup::fixed_scale, false));
  changes.push_back(set_up(&Setup::schedule_throws_at, -1));
  changes.push_back(set_up(&Setup::has_schedule, false));
  changes.push_back(set_up(&Setup::bucket_numel, 64));
}

void leave_out(std::vector<Operation>& operations, int parameter) {
  for (Operation& operation : operations) {
    std::erase(operation.parameters, parameter);
    for (int& index : operation.parameters) index -= index > parameter;
    leave_out(operation.body, parameter);
  }
}

void add_parameters(std::vector<Change>& changes, const Program& program) {
  for (int index = static_cast<int>(program.parameters.size()) - 1; index >= 0; --index) {
    auto set_parameter = [&](const auto& change) {
      changes.push_back([=](Program& own) { return change(own.parameters[index]); });
    };
    if (program.parameters.size() > 1) {
      changes.push_back([=](Program& own) {
        own.parameters.erase(own.parameters.begin() + index);
        leave_out(own.operations, index);
        return true;
      });
    }
    set_parameter([](Parameter& own) { return set(own, &Parameter::frozen, false); });
    set_parameter([](Parameter& own) { return set(own, &Parameter::tied, false); });
    set_parameter([](Parameter& own) { return set(own, &Parameter::group, 0); });
    set_parameter([](Parameter& own) {
      const bool changed = own.sizes != std::vector<int>{2, 2} || own.layout != Layout::plain;
      own.sizes = {2, 2};
      own.layout = Layout::plain;
      return changed;
    });
  }
}

void add_details(std::vector<Change>& changes, Program& program) {
  const int operations = count(program.operations);
  for (int number = 0; number < operations; ++number) {
    const Operation& operation = at(program, number);
    for (size_t use = 0; use < operation.parameters.size() && operation.parameters.size() > 1; ++use) {
      changes.push_back([=](Program& own) {
        auto& uses = at(own, number).parameters;
        uses.erase(uses.begin() + static_cast<long>(use));
        return true;
      });
    }
    changes.push_back(of_operation(number, &Operation::branch, false));
    changes.push_back(of_operation(number, &Operation::retain, false));
    changes.push_back(of_operation(number, &Operation::poison, kNobody));
    changes.push_back(of_operation(number, &Operation::data, 0));
    changes.push_back(of_operation(number, &Operation::how, 0));
    if (operation.kind != Kind::scope) changes.push_back(of_operation(number, &Operation::rank, kEverybody));
    if (operation.kind == Kind::scope) changes.push_back(of_operation(number, &Operation::rank, kNobody));
  }
}

// All changes to try, the largest first.
std::vector<Change> changes_of(Program& program) {
  std::vector<Change> changes;
  const int operations = count(program.operations);
  for (int length = operations; length >= 1; length /= 2) {
    for (int first = operations - 1; first >= 0; --first) changes.push_back(without(first, length));
  }
  for (int block = 0; block < operations; ++block) changes.push_back(opened(block));
  add_setup(changes, program.setup);
  add_parameters(changes, program);
  add_details(changes, program);
  return changes;
}

}  // namespace

Program shrink(Program program, const std::function<bool(const Program&)>& fails,
               std::chrono::seconds budget) {
  const auto end = std::chrono::steady_clock::now() + budget;
  for (bool smaller = true; smaller;) {
    smaller = false;
    const std::vector<Change> changes = changes_of(program);
    for (const Change& change : changes) {
      if (std::chrono::steady_clock::now() > end) return program;
      Program candidate = program;
      if (!change(candidate)) continue;
      candidate = within_contract(std::move(candidate));
      // Skips a change that the contract reverts or that adds operations.
      if (to_text(candidate) == to_text(program) || count(candidate.operations) > count(program.operations))
        continue;
      if (!fails(candidate)) continue;
      program = std::move(candidate);
      smaller = true;
      break;
    }
  }
  return program;
}

}  // namespace zerorun::testing
