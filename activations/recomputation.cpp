#include "activations/recomputation.h"

#include <algorithm>
#include <cstdio>
#include <numeric>
#include <sstream>
#include <utility>

#include "base/name_pattern.h"
#include "comm/agreement.h"

namespace zerorun {
namespace {

std::string in_mib(int64_t bytes) {
  char text[32];
  std::snprintf(text, sizeof(text), "%.1f MiB", static_cast<double>(bytes) / (1 << 20));
  return text;
}

std::string in_ms(double seconds) {
  char text[32];
  std::snprintf(text, sizeof(text), "%.1f ms", seconds * 1e3);
  return text;
}

// The stage, then one line per block.
std::string describe(int stage, const std::vector<MeasuredBlock>& blocks) {
  std::ostringstream text;
  text.precision(17);
  text << stage << '\n';
  for (const auto& [name, cost, kept] : blocks)
    text << name << '\t' << cost.inputs << '\t' << cost.in_file << '\t' << cost.activations << '\t'
         << cost.seconds << '\n';
  return text.str();
}

// The blocks of all ranks of the stage, in the order in which a rank has met them first, with the largest
// costs.
std::vector<MeasuredBlock> blocks_of_stage(int stage, const std::vector<std::string>& described) {
  std::vector<MeasuredBlock> blocks;
  for (const std::string& each : described) {
    std::istringstream text(each);
    std::string name;
    if (!std::getline(text, name) || name != std::to_string(stage)) continue;
    while (std::getline(text, name, '\t')) {
      BlockCost cost;
      text >> cost.inputs >> cost.in_file >> cost.activations >> cost.seconds;
      text.ignore();
      auto block = std::ranges::find(blocks, name, &MeasuredBlock::name);
      if (block == blocks.end()) block = blocks.insert(block, {.name = name, .cost = {}});
      block->cost.inputs = std::max(block->cost.inputs, cost.inputs);
      block->cost.in_file = std::max(block->cost.in_file, cost.in_file);
      block->cost.activations = std::max(block->cost.activations, cost.activations);
      block->cost.seconds = std::max(block->cost.seconds, cost.seconds);
    }
  }
  return blocks;
}

}  // namespace

int64_t peak_of(const std::vector<MeasuredBlock>& blocks, int64_t in_flight) {
  int64_t held = 0;  // of one micro-batch, by the blocks so far
  int64_t recomputing = 0;
  for (const auto& [name, cost, kept] : blocks) {
    if (kept) held += cost.inputs + cost.activations;
    if (!kept) recomputing = std::max(recomputing, held + cost.inputs + cost.activations);
    if (!kept) held += cost.inputs - cost.in_file;
  }
  return (in_flight - 1) * held + std::max(held, recomputing);
}

void keep_within(int64_t budget, int64_t in_flight, std::vector<MeasuredBlock>& blocks) {
  std::vector<size_t> order(blocks.size());
  std::iota(order.begin(), order.end(), size_t{0});
  const auto saves_per_byte = [&](size_t index) {
    const BlockCost& cost = blocks[index].cost;
    return cost.seconds / static_cast<double>(std::max<int64_t>(cost.activations, 1));
  };
  std::ranges::stable_sort(order, std::greater(), saves_per_byte);
  for (const size_t index : order) {
    blocks[index].kept = true;
    if (peak_of(blocks, in_flight) > budget) blocks[index].kept = false;
  }
}

Recomputation::Recomputation(const RecomputeConfig& config, InputHome home)
    : config_(config), home_(std::move(home)), undecided_(config.budget.has_value()) {}

bool Recomputation::chooses(const std::string& name, bool is_inside) {
  if (!config_.patterns.empty())
    return std::ranges::any_of(config_.patterns,
                               [&](const std::string& pattern) { return matches_name(pattern, name); });
  if (is_inside) return false;
  if (config_.every == 1) return true;
  const std::lock_guard lock(mutex_);
  if (config_.every > 1) {
    const auto place = static_cast<int64_t>(places_.size());
    return places_.try_emplace(name, place).first->second % config_.every == 0;
  }
  if (!config_.budget) return false;
  const auto block = std::ranges::find(blocks_, name, &MeasuredBlock::name);
  if (block != blocks_.end()) return !block->kept;
  if (undecided_) blocks_.push_back({.name = name, .cost = {}});
  return true;
}

bool Recomputation::measures() const {
  return config_.timed || is_undecided();
}

void Recomputation::add(const std::string& name, const BlockCost& cost) {
  const std::lock_guard lock(mutex_);
  ++timed_count_;
  timed_seconds_ += cost.seconds;
  if (!undecided_) return;
  const auto block = std::ranges::find(blocks_, name, &MeasuredBlock::name);
  if (block == blocks_.end()) return;
  BlockCost& known = block->cost;
  known.inputs = std::max(known.inputs, cost.inputs);
  known.in_file = std::max(known.in_file, cost.in_file);
  known.activations = std::max(known.activations, cost.activations);
  known.seconds = known.seconds == 0 ? cost.seconds : std::min(known.seconds, cost.seconds);
}

bool Recomputation::compares(const std::string& name) {
  const std::lock_guard lock(mutex_);
  return compared_.insert(name).second;
}

bool Recomputation::is_undecided() const {
  const std::lock_guard lock(mutex_);
  return undecided_;
}

std::string Recomputation::decide(Communicator& ranks, int stage, int64_t in_flight) {
  const std::lock_guard lock(mutex_);
  blocks_ = blocks_of_stage(stage, exchange_texts(describe(stage, blocks_), ranks, "costs of recomputation"));
  keep_within(*config_.budget, in_flight, blocks_);
  undecided_ = false;
  std::string kept;
  int64_t count = 0;
  double seconds = 0;
  for (const MeasuredBlock& block : blocks_) {
    if (!block.kept) {
      seconds += block.cost.seconds;
      continue;
    }
    kept += (count++ == 0 ? ": " : ", ") + block.name;
  }
  const int64_t peak = peak_of(blocks_, in_flight);
  std::string text = "recomputation within " + in_mib(*config_.budget) + ": keeps the activations of " +
                     std::to_string(count) + " of " + std::to_string(blocks_.size()) + " blocks, " +
                     in_mib(peak) + " at most, and recomputes the others in " + in_ms(seconds) +
                     " per micro-batch" + kept;
  if (blocks_.empty()) text += "; no block was differentiated in the first step";
  if (peak > *config_.budget) text += "; the budget is too small even with all blocks recomputed";
  return text;
}

std::string Recomputation::report() {
  const std::lock_guard lock(mutex_);
  if (!config_.timed || timed_count_ == 0) return "";
  std::string text = "recomputation of " + std::to_string(std::exchange(timed_count_, 0)) + " blocks: ";
  return text + in_ms(std::exchange(timed_seconds_, 0));
}

}  // namespace zerorun
