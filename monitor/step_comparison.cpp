#include "monitor/step_comparison.h"

#include <algorithm>
#include <array>
#include <bit>
#include <charconv>
#include <cmath>
#include <iterator>

#include "base/error.h"

namespace zerorun {
namespace {

constexpr size_t kDigits = 16;  // of a hash

// The shortest text that reads back as the same value.
std::string text_of(double value) {
  std::array<char, 32> text{};
  return {text.data(), std::to_chars(text.data(), text.data() + text.size(), value).ptr};
}

std::string text_of(const std::optional<double>& value) {
  return value ? text_of(*value) : "none";
}

std::string both(const std::string& what, const std::optional<double>& a, const std::optional<double>& b) {
  return what + ": " + text_of(a) + " | " + text_of(b);
}

bool is_same(double a, double b) {
  return a == b || (std::isnan(a) && std::isnan(b));
}

bool is_same(const std::optional<double>& a, const std::optional<double>& b) {
  return a.has_value() == b.has_value() && (!a || is_same(*a, *b));
}

bool is_close(double a, double b, double tolerance) {
  return is_same(a, b) || std::abs(a - b) <= tolerance * std::max(std::abs(a), std::abs(b));
}

// Places of hashes that differ. A text that is shorter lacks the last ones.
std::vector<size_t> differing(const HashText& a, const HashText& b) {
  std::vector<size_t> places;
  const size_t count = std::min(a.size(), b.size()) / kDigits;
  for (size_t place = 0; place < count; ++place) {
    if (a.compare(place * kDigits, kDigits, b, place * kDigits, kDigits) != 0) places.push_back(place);
  }
  return places;
}

// "h.0.weight", or "3 of 28 parameters, h.0.weight the first of them".
std::string describe(const std::vector<size_t>& places, size_t of, const RunRecord& run) {
  const std::string& first = run.parameters.at(places.front()).name;
  if (places.size() == 1) return first + " (and of no other parameter)";
  return std::to_string(places.size()) + " of " + std::to_string(of) + " parameters, the first: " + first;
}

// Collects what differs in a step: the first fact says what it is.
class Facts {
 public:
  Facts(int64_t step, const RunRecord& run) : run_(run), parting_{.step = step} {}

  void add(Parting what, std::string fact, const std::string& hint) {
    if (parting_.facts.empty()) parting_.what = what, parting_.hint = hint;
    parting_.facts.push_back(std::move(fact));
  }
  void add(Parting what, const std::string& of, const HashText& a, const HashText& b,
           const std::string& hint) {
    const std::vector<size_t> places = differing(a, b);
    if (!places.empty()) add(what, of, places, std::min(a.size(), b.size()) / kDigits, hint);
  }
  void add(Parting what, const std::string& of, const std::vector<size_t>& places, size_t count,
           const std::string& hint) {
    add(what, of + " of " + describe(places, count, run_), hint);
    if (!parting_.parameter) parting_.parameter = run_.parameters.at(places.front()).name;
  }
  void name_rank(int rank) {
    if (parting_.what == Parting::loss) parting_.rank = rank;
  }
  bool has_any() const { return !parting_.facts.empty(); }
  std::optional<PartingStep> result() const { return has_any() ? std::optional(parting_) : std::nullopt; }

 private:
  const RunRecord& run_;
  PartingStep parting_;
};

void compare_losses(Facts& facts, const StepRecord& a, const StepRecord& b) {
  if (a.losses.empty() || b.losses.empty()) return;  // the program calls loss.backward() itself
  const size_t ranks = std::min(a.losses.size(), b.losses.size());
  std::vector<size_t> others;
  for (size_t rank = 0; rank < ranks; ++rank) {
    if (!is_same(a.losses[rank], b.losses[rank])) others.push_back(rank);
  }
  if (others.empty()) return;
  const size_t rank = others.front();
  const bool is_one = others.size() == 1 && ranks > 1;
  const std::string which = std::to_string(rank);
  facts.add(Parting::loss,
            both("loss of data rank " + which, a.losses[rank], b.losses[rank]) +
                (is_one                  ? " (equal on the other ranks)"
                 : others.size() < ranks ? " (and on " + std::to_string(others.size() - 1) + " more of " +
                                               std::to_string(ranks) + " ranks)"
                 : ranks > 1 ? " (and on all other ranks)"
                             : ""),
            is_one ? "what rank " + which + " computes its loss from: its data, or its random numbers"
                   : "what the loss is computed from, as values were equal before: the data, random "
                     "numbers (dropout), or the model's code");
  if (is_one) facts.name_rank(static_cast<int>(rank));
}

void compare_written(Facts& facts, const StepRecord& a, const StepRecord& b, size_t count) {
  std::vector<size_t> places;
  std::vector<int64_t> different;
  std::ranges::set_symmetric_difference(a.written, b.written, std::back_inserter(different));
  for (const int64_t place : different) places.push_back(static_cast<size_t>(place));
  if (places.empty()) return;
  const bool in_both = !a.written.empty() && !b.written.empty();
  facts.add(Parting::written,
            std::string("changed between the update before and this one, ") +
                (in_both             ? "in one of the runs"
                 : a.written.empty() ? "in B"
                                     : "in A") +
                ": values",
            places, count,
            "who writes to the parameter: the program (copy_, GatheredParameters, a checkpoint), or a fault "
            "of memory");
}

std::optional<PartingStep> compare_bits(const StepRecord& a, const StepRecord& b, const RunRecord& run) {
  Facts facts(a.step, run);
  const size_t trained = std::ranges::count(run.parameters, true, &LoggedParameter::is_trained);
  compare_written(facts, a, b, trained);
  compare_losses(facts, a, b);
  if (!is_same(a.loss_scale, b.loss_scale))
    facts.add(Parting::loss_scale, both("loss scale", a.loss_scale, b.loss_scale), "the settings of fp16");
  facts.add(
      Parting::gradients, "gradients", a.gradients, b.gradients,
      "the backward or the sums over ranks, as losses are equal: a hook, a scaled loss, a gradient that was "
      "dropped or came twice, other random numbers in a recomputed block");
  if (a.is_skipped != b.is_skipped)
    facts.add(Parting::loss_scale, std::string("skipped: ") + (a.is_skipped ? "yes | no" : "no | yes"),
              "a gradient that is infinite or NaN");
  if (!is_same(a.gradient_norm, b.gradient_norm))
    facts.add(Parting::norm, both("norm of the gradients", a.gradient_norm, b.gradient_norm),
              a.gradients.empty() || b.gradients.empty() ? "the gradients"
                                                         : "the norm itself, as the gradients are equal");
  if (!is_same(a.lr, b.lr))
    facts.add(Parting::learning_rate, both("learning rate", a.lr, b.lr),
              "optimizer.params.lr, the schedule, or a call of set_lr()");
  facts.add(Parting::values, "values after the update", a.values, b.values,
            "the optimizer, as gradients and learning rate are equal: its moments, its step count, another "
            "hyperparameter, or clipping");
  return facts.result();
}

std::optional<PartingStep> compare_closely(const StepRecord& a, const StepRecord& b,
                                           const RunComparison& runs) {
  Facts facts(a.step, runs.first);
  const double tolerance = runs.tolerance;
  if (a.loss && b.loss && !is_close(*a.loss, *b.loss, tolerance))
    facts.add(Parting::loss, both("mean loss", a.loss, b.loss), "data, seeds or settings of the runs");
  if (a.is_skipped != b.is_skipped && runs.first.precision == runs.second.precision)
    facts.add(Parting::loss_scale, std::string("skipped: ") + (a.is_skipped ? "yes | no" : "no | yes"),
              "a gradient that is infinite or NaN");
  // A norm is the root of a sum of squares, whose terms each have a rounding error of their own.
  if (!is_close(a.gradient_norm, b.gradient_norm, kNormFactor * tolerance))
    facts.add(Parting::norm, both("norm of the gradients", a.gradient_norm, b.gradient_norm),
              "the backward, or the sums over ranks");
  if (!is_close(a.lr, b.lr, 1e-12))
    facts.add(Parting::learning_rate, both("learning rate", a.lr, b.lr),
              "optimizer.params.lr, the schedule, or a call of set_lr()");
  return facts.result();
}

}  // namespace

std::map<int64_t, StartPlaces> places_of_starts(const std::vector<int64_t>& starts_of_a,
                                                const std::vector<int64_t>& starts_of_b,
                                                const std::vector<int64_t>& steps_of_a,
                                                const std::vector<int64_t>& steps_of_b) {
  std::map<int64_t, StartPlaces> places;
  for (const int64_t step : starts_of_a) places[step].in_a = true;
  for (const int64_t step : starts_of_b) places[step].in_b = true;
  std::erase_if(places, [&](const auto& place) {
    const auto& [step, at] = place;
    return (!at.in_a && !std::ranges::binary_search(steps_of_a, step)) ||
           (!at.in_b && !std::ranges::binary_search(steps_of_b, step));
  });
  return places;
}

std::optional<PartingStep> compare_start_values(int64_t step, const HashText& a, const HashText& b,
                                                const RunRecord& run) {
  Facts facts(step, run);
  facts.add(Parting::start, "values", a, b,
            step == 0 ? "initial values: the seed, or the file that they are loaded from"
                      : "what the run began with: its checkpoint");
  return facts.result();
}

std::optional<PartingStep> compare_step(const StepRecord& a, const StepRecord& b, const RunComparison& runs) {
  return runs.reasons.empty() ? compare_bits(a, b, runs.first) : compare_closely(a, b, runs);
}

}  // namespace zerorun
