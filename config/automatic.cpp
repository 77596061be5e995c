#include "config/automatic.h"

#include <algorithm>
#include <cmath>

#include "base/error.h"
#include "config/suggestion.h"

namespace zerorun::config {
namespace {

constexpr int64_t max_hidden_size = 1 << 30;  // its square fits 64 bits

/// Computes the value of an "auto" from the model's hidden size `h`, with the formulas of DeepSpeed's
/// integration in transformers. Returns nothing if the key has no such formula.
std::optional<int64_t> from_hidden_size(std::string_view path, int64_t h) {
  const int64_t square = h * h;
  if (path == "zero_optimization.reduce_bucket_size") return square;
  if (path == "zero_optimization.stage3_prefetch_bucket_size") {
    return static_cast<int64_t>(0.9 * static_cast<double>(square));
  }
  if (path == "zero_optimization.stage3_param_persistence_threshold") return 10 * h;
  return std::nullopt;
}

const Arguments::mapped_type* find_argument(const KeyFact& fact, const Arguments& arguments) {
  auto found = arguments.find(std::string(fact.path));
  if (found == arguments.end() && !fact.other_name.empty()) {
    found = arguments.find(join_path(section_of(fact.path), fact.other_name));
  }
  return found == arguments.end() ? nullptr : &found->second;
}

std::string giver_of(const KeyFact& fact, Source source, bool has_value) {
  switch (source) {
    case Source::program:
      return "from the program's arguments";
    case Source::model:
      return "from the model's hidden size";
    case Source::open:
      return fact.automatic == Automatic::model ? "from the model's hidden size when a run starts"
                                                : "from the program when a run starts";
    default:
      return has_value ? "the default" : "from the program, or else from other keys";
  }
}

}  // namespace

void AutomaticNotes::add(const KeyFact& fact, const Position& at, const std::string& path, Source source,
                         const SettingValue& value) {
  if (groups_.empty()) {
    at_ = at;
    path_ = path;
  }
  const bool has_value = !std::holds_alternative<std::monostate>(value);
  const std::string giver = giver_of(fact, source, has_value);
  auto group = std::ranges::find(groups_, giver, &std::pair<std::string, std::string>::first);
  if (group == groups_.end()) group = groups_.insert(group, {giver, ""});
  std::string& keys = group->second;
  keys += (keys.empty() ? "" : ", ") + path + (has_value ? " = " + to_json(value) : "");
}

void AutomaticNotes::report(Diagnostics& diagnostics) const {
  std::string text;
  for (const auto& [giver, keys] : groups_) text += (text.empty() ? "" : "; ") + giver + ": " + keys;
  if (!text.empty()) diagnostics.add_message(Severity::note, at_, path_, "\"auto\": " + text);
}

AutomaticValue resolve_automatic(const KeyFact& fact, const Arguments& arguments,
                                 std::optional<int64_t> hidden_size) {
  AutomaticValue result;
  if (const auto* argument = find_argument(fact, arguments)) {
    result.source = Source::program;
    result.argument = check_argument(fact, *argument);
    result.value = result.argument.value;
  } else if (fact.automatic == Automatic::model && hidden_size) {
    const auto size = from_hidden_size(fact.path, *hidden_size);
    ZR_CHECK(size, "no rule for " + std::string(fact.path));
    result.source = Source::model;
    result.value = *size;
  } else if (fact.automatic == Automatic::fallback) {
    result.source = Source::fallback;
    result.value = fallback_of(fact);
  }
  return result;
}

std::string how_to_give(const KeyFact& fact) {
  const std::string argument = "options.arguments[\"" + std::string(fact.path) + "\"]";
  const std::string giver =
      fact.automatic == Automatic::model ? "options.hidden_size or " + argument : argument;
  return "pass it to initialize() as " + giver + ", or in the file: " + advice_of(fact);
}

void check_automatic_options(const LoadOptions& options) {
  if (options.hidden_size && (*options.hidden_size < 1 || *options.hidden_size > max_hidden_size)) {
    throw UserError("hidden_size: expected a number from 1 to " + std::to_string(max_hidden_size) +
                    ", found " + std::to_string(*options.hidden_size) +
                    "; pass the hidden size of the model");
  }
  for (const auto& [path, value] : options.arguments) {
    const KeyFact* fact = find_key(path);
    if (!fact) {
      throw UserError("arguments: " + path + ": expected the path of a key, such as optimizer.params.lr; " +
                      unknown_key(section_of(path), name_of(path)).text);
    }
    if (fact->automatic == Automatic::nobody) {
      throw UserError("arguments: " + path +
                      ": expected a key that can be \"auto\"; write this one in the configuration");
    }
  }
}

}  // namespace zerorun::config
