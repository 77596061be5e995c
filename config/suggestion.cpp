#include "config/suggestion.h"

#include <algorithm>
#include <array>
#include <cctype>
#include <cstdlib>
#include <limits>

#include "config/diagnostics.h"
#include "config/key_table.h"

namespace zerorun {
namespace {

constexpr std::size_t max_shown_places = 3;
constexpr std::size_t min_telling_part = 6;  // letters

std::string in_lower_case(std::string_view text) {
  std::string lower(text);
  for (char& c : lower) c = static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
  return lower;
}

// Two mistakes in a three-letter word leave nothing of it; long words may carry more of them.
int tolerance(std::size_t length) {
  return length <= 3 ? 1 : std::max(2, static_cast<int>(length) / 3);
}

/// A distance that two words cannot go below, from the characters that only one of them has.
int least_distance(const std::string& a, const std::string& b) {
  std::array<int, 256> surplus{};
  for (const char c : a) ++surplus[static_cast<unsigned char>(c)];
  for (const char c : b) --surplus[static_cast<unsigned char>(c)];
  int only_a = 0;
  int only_b = 0;
  for (const int count : surplus) (count > 0 ? only_a : only_b) += std::abs(count);
  return std::max(only_a, only_b);
}

/// The distance, or some number of at least `limit` if that is reached: then it is of no interest.
int distance_below(int limit, const std::string& a, const std::string& b) {
  // Three rows of the usual table: the row before last is needed for swapped neighbours.
  std::vector<int> before(b.size() + 1), last(b.size() + 1), row(b.size() + 1);
  for (std::size_t j = 0; j <= b.size(); ++j) last[j] = static_cast<int>(j);
  int least_of_last = 0;
  for (std::size_t i = 1; i <= a.size(); ++i) {
    row[0] = static_cast<int>(i);
    int least = row[0];
    for (std::size_t j = 1; j <= b.size(); ++j) {
      const int change = last[j - 1] + (a[i - 1] == b[j - 1] ? 0 : 1);
      row[j] = std::min({last[j] + 1, row[j - 1] + 1, change});
      if (i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1]) {
        row[j] = std::min(row[j], before[j - 2] + 1);
      }
      least = std::min(least, row[j]);
    }
    if (std::min(least, least_of_last) >= limit) return limit;
    least_of_last = least;
    std::swap(before, last);
    std::swap(last, row);
  }
  return last[b.size()];
}

/// The shortest present key of the section that has `part` within, if that is long enough to say something.
std::string_view shortest_with(std::string_view section, std::string_view part) {
  std::string_view best;
  if (part.size() < min_telling_part) return best;
  const std::string lower = in_lower_case(part);
  for (const std::string_view name : keys_of(section)) {
    if (!best.empty() && name.size() >= best.size()) continue;
    if (in_lower_case(name).find(lower) == std::string::npos) continue;
    const KeyFact* fact = find_key(join_path(section, name));
    const bool present = fact && fact->status != KeyStatus::old_name && fact->status != KeyStatus::replaced;
    if (present) best = name;
  }
  return best;
}

}  // namespace

int edit_distance(std::string_view a, std::string_view b) {
  return distance_below(std::numeric_limits<int>::max(), in_lower_case(a), in_lower_case(b));
}

std::string_view nearest(std::string_view word, const std::vector<std::string_view>& candidates) {
  const std::string lower = in_lower_case(word);
  std::string_view best;
  int best_distance = tolerance(word.size()) + 1;
  for (const std::string_view candidate : candidates) {
    const auto too_far = static_cast<std::size_t>(best_distance);
    if (candidate.size() + too_far <= word.size() || word.size() + too_far <= candidate.size()) continue;
    const std::string candidate_in_lower_case = in_lower_case(candidate);
    if (least_distance(lower, candidate_in_lower_case) >= best_distance) continue;
    const int distance = distance_below(best_distance, lower, candidate_in_lower_case);
    if (distance < best_distance) {
      best_distance = distance;
      best = candidate;
    }
  }
  return best;
}

Remedy unknown_key(std::string_view section, std::string_view name) {
  if (name.find('.') != std::string_view::npos)
    return {"write it inside the object of its section: dots do not nest"};
  if (const auto longer = shortest_with(section, name); !longer.empty()) {
    return {"did you mean " + in_quotes(longer) + "?", true};
  }
  const std::vector<std::string> places = paths_of(name);
  if (!places.empty() && places.size() <= max_shown_places) {
    std::string list;
    for (const std::string& place : places) list += (list.empty() ? "" : " or ") + place;
    return {"the key belongs elsewhere: " + list};
  }
  if (const auto meant = nearest(name, keys_of(section)); !meant.empty()) {
    return {"did you mean " + in_quotes(meant) + "?", true};
  }
  return {"remove it (remarks can be written as // comments)"};
}

}  // namespace zerorun
