// Counts how many programs have each feature.
#include <algorithm>
#include <set>

#include "tests/random_programs/program.h"

namespace zerorun::testing {
namespace {

using Features = std::set<std::string>;

void add_operations(const std::vector<Operation>& operations, int scopes, Features& features) {
  for (const Operation& operation : operations) {
    const std::string name = name_of(operation.kind);
    const bool one_rank = operation.rank >= 0;
    features.insert(name);
    if (operation.branch) features.insert("branch by rank");
    if (operation.poison != kNobody) features.insert("gradient that is not finite");
    if (operation.retain) features.insert("retained graph");
    if (operation.kind == Kind::scope && one_rank) features.insert("scope with a modifier");
    if (operation.kind == Kind::scope && scopes > 0) features.insert("scope in a scope");
    if (operation.kind == Kind::read && one_rank)
      features.insert(scopes > 0 ? "read by one rank in a scope" : "read by one rank");
    if (operation.kind == Kind::fail) {
      features.insert(std::string("exception ") + (one_rank ? "on one rank" : "on all ranks") +
                      (scopes > 0 ? " in a scope" : ""));
    }
    if (operation.kind == Kind::remake && operation.how == 1)
      features.insert("engine that takes over a model");
    if (operation.kind == Kind::remake && operation.how == 2)
      features.insert("engine with a communicator of its own");
    add_operations(operation.body, scopes + (operation.kind == Kind::scope ? 1 : 0), features);
  }
}

// Adds the features that depend on the order of operations in one list, such as several backwards before a
// step, or a step whose last backward is inside a no_sync scope.
void add_order(const std::vector<Operation>& operations, Features& features) {
  int backwards = 0;
  bool unreduced = false;
  for (const Operation& operation : operations) {
    if (operation.kind == Kind::backward) {
      features.insert(operation.how == 1 ? "loss.backward()" : "engine.backward()");
      if (++backwards == 2) features.insert("several backwards before a step");
      unreduced = false;
    }
    if (operation.kind == Kind::no_sync && !operation.body.empty()) {
      unreduced = std::ranges::any_of(operation.body,
                                      [](const Operation& inner) { return inner.kind == Kind::backward; });
    }
    if (operation.kind != Kind::step) continue;
    if (unreduced) features.insert("last backward in a no_sync scope");
    backwards = 0;
    unreduced = false;
  }
}

}  // namespace

void count_features(const Program& program, FeatureCounts& counts) {
  Features features;
  const Setup& setup = program.setup;
  static constexpr const char* kPlaces[] = {"rank-threads",
                                            "rank-threads that share memory",
                                            "rank-threads on two levels",
                                            "processes, shared memory",
                                            "processes, Gloo",
                                            "processes on two levels"};
  static constexpr const char* kPrecisions[] = {"fp32", "bf16", "fp16"};
  static constexpr const char* kRules[] = {"SGD", "SGD with momentum", "AdamW"};
  features.insert(kPlaces[static_cast<int>(setup.place)]);
  features.insert(kPrecisions[static_cast<int>(setup.precision)]);
  features.insert(kRules[static_cast<int>(setup.rule)]);
  static constexpr const char* kSources[] = {"optimizer of the config", "optimizer of the program",
                                             "enable_zero()"};
  features.insert(kSources[static_cast<int>(setup.source)]);
  if (setup.marks) features.insert("marks of gradients");
  features.insert("stage " + std::to_string(setup.stage));
  features.insert(std::to_string(setup.ranks) + (setup.ranks == 1 ? " rank" : " ranks"));
  if (setup.recomputes) features.insert("recomputed blocks");
  if (setup.groups > 1) {
    features.insert("data groups of a larger job");
    if (in_processes(setup.place)) features.insert("data groups in processes");
  }
  static constexpr const char* kInFiles[] = {"", "optimizer states in files", "parameters in files",
                                             "optimizer states and parameters in files"};
  if (setup.in_files != InFiles::nothing) features.insert(kInFiles[static_cast<int>(setup.in_files)]);
  if (setup.micro_steps > 1) features.insert("accumulation");
  if (setup.clips) features.insert("clipping");
  if (setup.has_schedule) features.insert("schedule of the program");
  if (setup.schedule_throws_at >= 0) features.insert("schedule that throws");
  for (const Parameter& parameter : program.parameters) {
    if (parameter.frozen) features.insert("frozen parameter");
    if (parameter.tied) features.insert("tied parameter");
    if (parameter.numel() == 0) features.insert("parameter without elements");
    if (parameter.layout != Layout::plain) features.insert("non-contiguous parameter");
    if (parameter.group != 0) features.insert("parameter groups");
  }
  add_operations(program.operations, 0, features);
  add_order(program.operations, features);
  for (const std::string& feature : features) ++counts[feature];
}

}  // namespace zerorun::testing
