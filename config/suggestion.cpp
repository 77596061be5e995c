#include "config/suggestion.h"

#include <algorithm>
#include <cctype>
#include <numeric>
#include <span>

#include "config/diagnostics.h"
#include "config/key_table.h"
#include "config/key_words.h"

namespace zerorun::config {
namespace {

constexpr std::size_t max_shown_places = 2;  // a name that is in more sections than this is not suggested
constexpr std::size_t max_tried_members = 100;
constexpr std::size_t min_shared_part = 6;  // a shorter name is not searched for inside of longer names

/// Names that other programs use for a key, or that users often write by mistake.
struct Synonym {
  std::string_view names;
  std::string_view meant;   // path of the intended key; empty: there is no such key
  std::string_view remedy;  // used if `meant` is empty
  std::string_view section = "*";
};

constexpr Synonym synonyms[] = {
    {"fp8 msamp", "",
     "write \"bf16\": {\"enabled\": true}, the narrowest dtype that keeps the range of fp32"},
    {"dynamic_loss_scale", "", "write \"loss_scale\": 0, for dynamic loss scaling", "fp16"},
    {"batch_size global_batch_size total_batch_size", "train_batch_size", ""},
    {"micro_batch_size micro_batch_size_per_gpu train_micro_batch_size per_device_train_batch_size",
     "train_micro_batch_size_per_gpu", ""},
    {"grad_accum_steps grad_accumulation_steps", "gradient_accumulation_steps", ""},
    {"clip_grad grad_clip clip_grad_norm max_norm gradient_clip_val", "gradient_clipping", ""},
    {"learning_rate", "optimizer.params.lr", ""},
    {"epsilon adam_epsilon", "optimizer.params.eps", ""},
    {"beta1 beta2 adam_beta1 adam_beta2", "optimizer.params.betas", ""},
    {"wd", "optimizer.params.weight_decay", ""},
    {"warmup_steps num_warmup_steps", "scheduler.params.warmup_num_steps", ""},
    {"total_steps num_training_steps", "scheduler.params.total_num_steps", ""},
    {"zero_stage", "zero_optimization.stage", ""},
    {"tag_validation_enabled checkpoint_tag_validation_enabled checkpoint_tag_validation",
     "checkpoint.tag_validation", ""},
    {"tensor_parallel_degree tensor_parallel_size tensor_model_parallel_size tp_size",
     "tensor_parallel.autotp_size", ""},
};

std::string in_lower_case(std::string_view text) {
  std::string lower(text);
  for (char& c : lower) c = static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
  return lower;
}

// Returns the edit distance up to which a key counts as a typo. It must stay small: two typos can turn a
// short word into a different word, and four can turn any word into a different one.
int tolerance(std::size_t length) {
  return length <= 5 ? 1 : std::clamp(static_cast<int>(length) / 4, 2, 3);
}

/// Whether the key is neither an old name nor replaced.
bool is_present(const KeyFact& fact) {
  return fact.status != KeyStatus::old_name && fact.status != KeyStatus::replaced;
}

/// Returns the shortest key of the section whose name contains `part` and for which is_present() holds.
/// Returns an empty text if there is none or `part` is too short.
std::string_view shortest_with(std::string_view section, std::string_view part) {
  std::string_view best;
  if (part.size() < min_shared_part) return best;
  const std::string lower = in_lower_case(part);
  for (const std::string_view name : keys_of(section)) {
    if (!best.empty() && name.size() >= best.size()) continue;
    if (in_lower_case(name).find(lower) == std::string::npos) continue;
    const KeyFact* fact = find_key(join_path(section, name));
    if (fact && is_present(*fact)) best = name;
  }
  return best;
}

/// Returns the path, followed by "at the top level" for a key of the top level.
std::string place_of(std::string_view path) {
  return std::string(path) + (section_of(path).empty() ? " at the top level" : "");
}

/// Returns in parentheses that a section around the key, or the key itself, is not supported; empty if all
/// are.
std::string support_of(const std::string& path) {
  for (std::size_t end = path.find('.');; end = path.find('.', end + 1)) {
    const KeyFact* fact = find_key(path.substr(0, end));
    if (fact && fact->status == KeyStatus::not_supported) return " (" + status_in_words(*fact) + ")";
    if (end == std::string::npos) return "";
  }
}

/// Returns the places of all keys with this name for which is_present() holds, except the path `section`.
std::vector<std::string> places_of(std::string_view name, std::string_view section = {}) {
  std::vector<std::string> places;
  for (const std::string& path : paths_of(name)) {
    if (path != section && is_present(*find_key(path))) places.push_back(place_of(path) + support_of(path));
  }
  return places;
}

/// Returns where the keys inside an unknown section belong; empty if that is unclear.
std::string places_of_members(const Value& value) {
  std::string list;
  std::size_t found = 0;
  for (const DocumentMember& member : value.members) {
    const auto places = places_of(member.key);
    if (places.size() != 1) continue;
    list += (list.empty() ? "" : ", ") + places.front();
    if (++found == max_shown_places) break;
  }
  return list;
}

/// Whether an unknown key with this value may mean `fact`. If `fact` is a section, at least one key in the
/// value must fit it.
bool can_mean(const KeyFact& fact, const Value& value) {
  const auto is_in_it = [&](const DocumentMember& member) {
    return find_key(join_path(fact.path, member.key)) || !nearest(member.key, keys_of(fact.path)).empty();
  };
  if (fact.type != KeyType::section || value.members.empty()) return true;
  const std::span<const DocumentMember> members = value.members;
  return std::ranges::any_of(members.first(std::min(members.size(), max_tried_members)), is_in_it);
}

/// Returns a text in parentheses that says that a run refuses the key; empty if a run accepts it.
std::string caution(const KeyFact& fact) {
  return fact.changes_result ? " (" + status_in_words(fact) + ")" : "";
}

Remedy misspelled(std::string_view section, std::string_view name) {
  const KeyFact& fact = *find_key(join_path(section, name));
  if (fact.status == KeyStatus::replaced) return {std::string(fact.reason), &fact};
  return {"did you mean " + in_quotes(name) + "?" + caution(fact), &fact};
}

Remedy remedy_for_name(const Synonym& synonym, std::string_view section) {
  if (synonym.meant.empty()) return {std::string(synonym.remedy)};
  if (section_of(synonym.meant) == section) return misspelled(section, name_of(synonym.meant));
  return {"write " + place_of(synonym.meant) + caution(*find_key(synonym.meant))};
}

const Synonym* find_synonym(std::string_view section, std::string_view name) {
  const KeyFact* fact = find_key(section);
  if (fact && fact->status == KeyStatus::old_name) section = fact->target;
  for (const Synonym& synonym : synonyms) {
    const bool is_here = synonym.section == "*" || synonym.section == section;
    if (is_here && has_word(synonym.names, name)) return &synonym;
  }
  return nullptr;
}

std::size_t common_beginning(std::string_view a, std::string_view b) {
  return static_cast<std::size_t>(std::ranges::mismatch(a, b).in1 - a.begin());
}

}  // namespace

int edit_distance(std::string_view a, std::string_view b) {
  const std::string from = in_lower_case(a);
  const std::string to = in_lower_case(b);
  // Three rows of the dynamic programming table. Transpositions need the row before the last.
  std::vector<int> before(to.size() + 1), last(to.size() + 1), row(to.size() + 1);
  std::iota(last.begin(), last.end(), 0);
  for (std::size_t i = 1; i <= from.size(); ++i) {
    row[0] = static_cast<int>(i);
    for (std::size_t j = 1; j <= to.size(); ++j) {
      const int change = last[j - 1] + (from[i - 1] == to[j - 1] ? 0 : 1);
      row[j] = std::min({last[j] + 1, row[j - 1] + 1, change});
      const bool swapped = i > 1 && j > 1 && from[i - 1] == to[j - 2] && from[i - 2] == to[j - 1];
      if (swapped) row[j] = std::min(row[j], before[j - 2] + 1);
    }
    std::swap(before, last);
    std::swap(last, row);
  }
  return last.back();
}

std::string_view nearest(std::string_view word, const std::vector<std::string_view>& candidates) {
  std::string_view best;
  int best_distance = tolerance(word.size()) + 1;
  for (const std::string_view candidate : candidates) {
    const auto [shorter, longer] = std::minmax({word.size(), candidate.size()});
    if (longer - shorter > static_cast<std::size_t>(best_distance)) continue;
    const int distance = edit_distance(word, candidate);
    const bool more_alike = distance == best_distance && !best.empty() &&
                            common_beginning(word, candidate) > common_beginning(word, best);
    if (distance < best_distance || more_alike) {
      best_distance = distance;
      best = candidate;
    }
  }
  return best;
}

Remedy unknown_key(std::string_view section, std::string_view name, const Value& value) {
  if (name.find('.') != std::string_view::npos)
    return {"write it inside the object of its section: dots do not nest"};
  std::string spelled(name);
  std::ranges::replace(spelled, '-', '_');
  if (const Synonym* synonym = find_synonym(section, in_lower_case(spelled)))
    return remedy_for_name(*synonym, section);
  const auto means = [&](std::string_view key) {
    return !key.empty() && can_mean(*find_key(join_path(section, key)), value);
  };
  if (const auto longer = shortest_with(section, spelled); means(longer)) return misspelled(section, longer);
  const std::vector<std::string> places = places_of(spelled, section);
  if (!places.empty() && places.size() <= max_shown_places) {
    return {"the key belongs elsewhere: " + places.front() +
            (places.size() > 1 ? " or " + places.back() : "")};
  }
  if (const auto near = nearest(spelled, keys_of(section)); means(near)) return misspelled(section, near);
  if (const auto inner = places_of_members(value); !inner.empty()) {
    return {"its keys belong elsewhere: " + inner};
  }
  return {"remove it (remarks can be written as // comments)"};
}

}  // namespace zerorun::config
