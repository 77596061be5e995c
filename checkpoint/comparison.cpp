#include "checkpoint/comparison.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <set>
#include <span>
#include <type_traits>

#include "base/hexadecimal.h"
#include "base/narrow_floats.h"
#include "checkpoint/checksums.h"
#include "checkpoint/safetensors_dtype.h"
#include "checkpoint/state_header.h"

namespace zerorun::checkpoint {
namespace {

std::string to_text(const std::vector<int64_t>& values) {
  std::string text = "[";
  for (const int64_t value : values) text += (text.size() > 1 ? ", " : "") + std::to_string(value);
  return text + "]";
}

std::string to_text(const RestartValue& value) {
  if (const auto* integer = std::get_if<int64_t>(&value)) return std::to_string(*integer);
  if (const auto* real = std::get_if<double>(&value)) {
    constexpr size_t kTextBytes = 32;
    char text[kTextBytes];
    std::snprintf(text, sizeof(text), "%.17g", *real);
    return text;
  }
  return std::to_string(std::get<std::vector<uint8_t>>(value).size()) + " bytes";
}

std::string to_text(const std::optional<SavedWindow>& window) {
  if (!window) return "none";
  return std::to_string(window->micro_steps) + " of " + std::to_string(window->accumulation_steps) +
         " micro-steps, " + (window->is_summed ? "summed over ranks" : "each rank's own") + ", " +
         window->dtype + " (" + window->communication + "), factor " + std::to_string(window->factor) +
         ", loss scale " + std::to_string(window->loss_scale);
}

std::string to_text(const std::vector<std::string>& names) {
  std::string text;
  for (const std::string& name : names) text += (text.empty() ? "" : " ") + name;
  return text.empty() ? "none" : text;
}

std::string to_text(const Manifest& manifest, const char* file) {
  const auto found = manifest.files.find(file);
  if (found == manifest.files.end()) return "";
  const auto checksum = checksum_of(std::as_bytes(std::span(found->second.checksums)));
  return std::to_string(found->second.bytes) + " bytes, checksum " + in_hexadecimal(checksum);
}

class Comparison {
 public:
  Comparison(SavedState& first, SavedState& second) : first_(first), second_(second) {}

  CheckpointComparison run() && {
    compare_settings();
    std::set<std::string> names;
    for (const auto& [name, parameter] : first_.manifest().parameters) names.insert(name);
    for (const auto& [name, parameter] : second_.manifest().parameters) names.insert(name);
    for (const std::string& name : names) compare_parameter(name);
    return std::move(result_);
  }

 private:
  void compare_setting(const std::string& name, const std::string& first, const std::string& second) {
    if (first != second) result_.settings.push_back({name, first, second});
  }

  void compare_settings() {
    const Manifest& first = first_.manifest();
    const Manifest& second = second_.manifest();
    compare_setting("generation", std::to_string(first.generation), std::to_string(second.generation));
    compare_setting("world_size", std::to_string(first.world_size), std::to_string(second.world_size));
    if (first.mesh || second.mesh)
      compare_setting("mesh", describe(mesh_of(first)), describe(mesh_of(second)));
    compare_setting("stage", std::to_string(first.stage), std::to_string(second.stage));
    compare_setting("precision", first.precision, second.precision);
    compare_setting("optimizer", first.optimizer, second.optimizer);
    if (first.window != second.window)
      result_.settings.push_back({"window", to_text(first.window), to_text(second.window)});
    compare_setting("client_state", first.client_state, second.client_state);
    compare_setting(kClientTensorsFile, to_text(first, kClientTensorsFile),
                    to_text(second, kClientTensorsFile));
    const size_t ranks = first.world_size == second.world_size ? first.numbers.size() : 1;
    for (size_t rank = 0; rank < ranks; ++rank)
      compare_numbers(first.numbers[rank], second.numbers[rank], rank);
  }

  void compare_numbers(const RestartValues& first, const RestartValues& second, size_t rank) {
    const bool same_ranks = first_.manifest().world_size == second_.manifest().world_size;
    std::set<std::string> names;
    for (const auto& [name, value] : first) names.insert(name);
    for (const auto& [name, value] : second) names.insert(name);
    for (const std::string& name : names) {
      const bool is_of_rank = name.starts_with("generator.");
      if ((is_of_rank && !same_ranks) || (!is_of_rank && rank > 0)) continue;
      const auto a = first.find(name);
      const auto b = second.find(name);
      if (a != first.end() && b != second.end() && a->second == b->second) continue;
      const std::string of_rank = is_of_rank ? " of rank " + std::to_string(rank) : "";
      result_.settings.push_back({"numbers." + name + of_rank, a == first.end() ? "" : to_text(a->second),
                                  b == second.end() ? "" : to_text(b->second)});
    }
  }

  void add(const std::string& parameter, const std::string& state, const std::string& reason) {
    result_.states.push_back({.parameter = parameter, .state = state, .reason = reason});
  }

  void compare_parameter(const std::string& name) {
    const auto a = first_.manifest().parameters.find(name);
    const auto b = second_.manifest().parameters.find(name);
    if (a == first_.manifest().parameters.end()) return add(name, "", "only in the second");
    if (b == second_.manifest().parameters.end()) return add(name, "", "only in the first");
    if (a->second.shape != b->second.shape)
      return add(name, "", "shape " + to_text(a->second.shape) + " and " + to_text(b->second.shape));
    if (a->second.strides != b->second.strides)
      return add(name, "", "strides " + to_text(a->second.strides) + " and " + to_text(b->second.strides));
    if (a->second.trained != b->second.trained)
      add(name, "", a->second.trained ? "trained and frozen" : "frozen and trained");
    if (a->second.aliases != b->second.aliases)
      add(name, "", "tied names " + to_text(a->second.aliases) + " and " + to_text(b->second.aliases));
    if (a->second.split != b->second.split)
      return add(name, "", "split " + describe(a->second.split) + ", and " + describe(b->second.split));
    std::set<std::string> states;
    for (const std::string& state : first_.states_of(name)) states.insert(state);
    for (const std::string& state : second_.states_of(name)) states.insert(state);
    for (const std::string& state : states) compare_state(name, a->second, state);
  }

  void compare_state(const std::string& name, const SavedParameter& parameter, const std::string& state) {
    const std::string first = first_.dtype_of(name, state);
    const std::string second = second_.dtype_of(name, state);
    if (first.empty()) return add(name, state, "only in the second");
    if (second.empty()) return add(name, state, "only in the first");
    if (first != second) return add(name, state, "dtype " + first + " and " + second);
    const std::vector<int> parts = first_.parts_of(name, state);
    if (parts != second_.parts_of(name, state)) return add(name, state, "of other tensor ranks");
    ++result_.compared;
    StateDifference difference{.parameter = name, .state = state, .reason = "values"};
    for (const int part : parts) compare_part(part, numel_of(part_of(parameter, part)), first, difference);
    if (difference.differing > 0) result_.states.push_back(difference);
  }

  void compare_part(int part, int64_t numel, const std::string& dtype, StateDifference& difference) {
    const std::string& name = difference.parameter;
    const std::string& state = difference.state;
    difference.numel += numel;
    constexpr int64_t kPieceBytes = int64_t{1} << 20;
    const int64_t size = element_bytes(dtype);
    for (int64_t begin = 0; begin < numel; begin += kPieceBytes / size) {
      const int64_t count = std::min(kPieceBytes / size, numel - begin);
      a_.resize(static_cast<size_t>(count * size));
      b_.resize(a_.size());
      first_.read(name, state, begin, count, a_, part);
      second_.read(name, state, begin, count, b_, part);
      if (a_ != b_) compare_piece(dtype, size, difference);
    }
  }

  void compare_piece(const std::string& dtype, int64_t size, StateDifference& difference) {
    for (size_t at = 0; at < a_.size(); at += static_cast<size_t>(size))
      difference.differing += std::memcmp(&a_[at], &b_[at], static_cast<size_t>(size)) != 0 ? 1 : 0;
    if (dtype == "F64") {
      largest_of<double>(a_.data(), b_.data(), difference);
    } else if (const auto narrow = training_dtype_named(dtype)) {
      const auto numel = static_cast<int64_t>(a_.size()) / size;
      wide_a_.resize(static_cast<size_t>(numel) * sizeof(float));
      wide_b_.resize(wide_a_.size());
      widen(a_.data(), *narrow, reinterpret_cast<float*>(wide_a_.data()), numel);
      widen(b_.data(), *narrow, reinterpret_cast<float*>(wide_b_.data()), numel);
      largest_of<float>(wide_a_.data(), wide_b_.data(), difference);
    }
  }

  template <typename Real>
  void largest_of(const std::byte* a, const std::byte* b, StateDifference& difference) const {
    const size_t bytes = std::is_same_v<Real, double> ? a_.size() : wide_a_.size();
    for (size_t at = 0; at < bytes; at += sizeof(Real)) {
      if (std::memcmp(a + at, b + at, sizeof(Real)) == 0) continue;
      Real one;
      Real other;
      std::memcpy(&one, a + at, sizeof(Real));
      std::memcpy(&other, b + at, sizeof(Real));
      const double apart = std::abs(static_cast<double>(one) - static_cast<double>(other));
      difference.largest =
          std::max(difference.largest, std::isnan(apart) ? std::numeric_limits<double>::infinity() : apart);
    }
  }

  SavedState& first_;
  SavedState& second_;
  CheckpointComparison result_;
  std::vector<std::byte> a_;
  std::vector<std::byte> b_;
  std::vector<std::byte> wide_a_;
  std::vector<std::byte> wide_b_;
};

}  // namespace

CheckpointComparison compare_checkpoints(SavedState& first, SavedState& second) {
  return Comparison(first, second).run();
}

}  // namespace zerorun::checkpoint
