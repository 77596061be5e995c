#include "tests/random_programs/expected_errors.h"

#include <algorithm>
#include <utility>

namespace zerorun::testing {
namespace {

constexpr const char* kAway = "call reload_states() first";
constexpr const char* kFlipped = "frozen after initialize()";  // "was frozen ..." and "was unfrozen ..."
constexpr const char* kGradientIsSet = "the program has set grad() of parameter";
constexpr const char* kPartlyDropped = "the program has dropped the gradient of parameter";
constexpr const char* kStepInNoSync = "inside a no_sync() scope";
constexpr const char* kStepInScope = "inside a GatheredParameters scope";
constexpr const char* kSecondLast = "a second backward before step()";
constexpr const char* kBetween = "between backward() and step()";

}  // namespace

ExpectedErrors::ExpectedErrors(const Program& program, const PlainTraining& training)
    : program_(program), setup_(program.setup), training_(training) {
  begin();
}

void ExpectedErrors::begin() {
  held_.assign(setup_.ranks, std::vector<char>(program_.parameters.size()));
  gone_ = held_;
  partial_ = unheard_ = loaded_ = is_set_ = away_ = false;
  has_boundary_ = boundary_ = declared_ = false;
  flipped_.clear();
}

void ExpectedErrors::note_end_of_window() {
  for (auto& row : held_) std::ranges::fill(row, 0);
  gone_ = held_;
  partial_ = loaded_ = declared_ = false;
}

void ExpectedErrors::note_load(bool in_window) {
  loaded_ = in_window;
}

void ExpectedErrors::note_backward() {
  if (!setup_.marks) return;
  for (int rank = 0; rank < setup_.ranks; ++rank) {
    for (size_t index = 0; index < held_[rank].size(); ++index)
      held_[rank][index] |= training_.reached(rank)[index];
  }
}

// Whether the program has done nothing yet that makes calls of the engine fail.
bool ExpectedErrors::plain() const {
  return !partial_ && !unheard_ && !is_set_ && flipped_.empty() && !away_ && !has_boundary_;
}

const char* ExpectedErrors::by_marks() {
  if (!setup_.marks) return nullptr;
  if (std::exchange(is_set_, false)) return kGradientIsSet;  // the engine undoes it
  return partial_ ? kPartlyDropped : nullptr;
}

const char* ExpectedErrors::of(const Operation& operation) {
  switch (operation.kind) {
    case Kind::backward:
      return of_backward(operation);
    case Kind::failing_backward:
      if (!plain()) return kLeftOut;
      note_end_of_window();
      return nullptr;
    case Kind::step: {
      const char* refusal = of_step();
      unheard_ = false;
      if (!refusal) declared_ = false;
      return refusal;
    }
    case Kind::drop:
      return of_drop(operation);
    case Kind::set_gradient:
    case Kind::clip:
    case Kind::gradient:
      return of_gradients(operation);
    case Kind::flip:
      for (int index : operation.parameters) {
        if (!flipped_.erase(index)) flipped_.insert(index);
      }
      return nullptr;
    case Kind::boundary:
      if (setup_.source == Source::enable_zero) return "managed_gradient_accumulation";
      has_boundary_ = true;
      boundary_ = operation.how != 0;
      return nullptr;
    case Kind::offload: {
      const bool offloads = operation.how == 0;
      if (unheard_ || offloads == away_) return kLeftOut;
      if (const char* refusal = offloads ? by_marks() : nullptr) return refusal;
      if (offloads && training_.has_gradients()) return kBetween;
      away_ = offloads;
      return nullptr;
    }
    case Kind::group:
      return of_group(operation);
    case Kind::state:
      return of_states();
    case Kind::optimizer_file:
      return setup_.source == Source::config || setup_.has_schedule ? kLeftOut : nullptr;
    case Kind::save:
    case Kind::load: {
      const char* refusal = of_saving(operation.kind == Kind::load);
      unheard_ = false;
      return refusal;
    }
    default:
      return nullptr;
  }
}

const char* ExpectedErrors::of_gradients(const Operation& operation) {
  if (operation.kind == Kind::gradient) {
    const char* refusal = of_step();
    unheard_ = false;
    if (refusal) return refusal;
    return training_.updates() ? nullptr : "is whole only after the last backward() before an optimizer step";
  }
  if (unheard_) return kLeftOut;
  if (operation.kind == Kind::clip) {
    if (is_set_ || loaded_ || !flipped_.empty()) return kLeftOut;
    return setup_.marks && training_.holds_gradients() ? "set \"gradient_clipping\" in the config" : nullptr;
  }
  if (partial_ || !training_.has_gradients()) return kLeftOut;
  is_set_ = true;
  return nullptr;
}

const char* ExpectedErrors::of_backward(const Operation& operation) {
  if (is_set_ && !setup_.marks) return kLeftOut;  // LibTorch adds to it
  const bool by_loss = operation.how != by_engine;
  const bool scales = setup_.precision == Precision::fp16 && by_loss;
  const char* refusal = by_marks();
  unheard_ = false;
  const bool is_last = boundary_ && open_no_syncs == 0;
  if (!refusal && away_) refusal = kAway;
  if (!refusal && is_last && declared_) refusal = kSecondLast;
  if (!refusal && scales && operation.how == without_scale) refusal = "engine.scale(loss)";
  if (!refusal && is_last) declared_ = true;
  if (refusal && by_loss) is_set_ = false;  // the engine removes what the backward has done to grad()
  return refusal;
}

const char* ExpectedErrors::of_step() {
  if (const char* refusal = by_marks()) return refusal;
  if (away_) return kAway;
  if (open_no_syncs > 0) return kStepInNoSync;
  if (open_scopes > 0) return kStepInScope;
  const auto is_trained = [&](int index) { return !program_.parameters[index].frozen; };
  if (std::ranges::any_of(flipped_, is_trained)) return kFlipped;
  if (!flipped_.empty())
    return is_set_ ? kLeftOut : kFlipped;  // the order of the two errors is of no interest
  if (is_set_) return kGradientIsSet;
  return training_.has_gradients() ? nullptr : kStepWithoutBackward;
}

const char* ExpectedErrors::of_drop(const Operation& operation) {
  const int how = operation.how;
  if (how == by_engine_zero_grad) {
    unheard_ = false;
    is_set_ = is_set_ && !setup_.marks;
    return nullptr;
  }
  if (acts_on_slices(operation)) return nullptr;
  if (how == by_hand_some) {
    if (loaded_ || is_set_ || unheard_) return kLeftOut;
    int dropped = 0, dropped_all = 0;  // by how many ranks
    Held gone = gone_;
    for (int rank = 0; rank < setup_.ranks; ++rank) {
      for (int index : operation.parameters) gone[rank][index] |= held_[rank][index];
      dropped += std::ranges::count(gone[rank], 1) > 0;
      dropped_all += gone[rank] == held_[rank];
    }
    if (!setup_.marks || dropped == 0) return nullptr;
    const bool same = dropped == setup_.ranks && (dropped_all == 0 || dropped_all == setup_.ranks);
    if (!same) return kLeftOut;
    gone_ = gone;
    partial_ = dropped_all == 0;
    unheard_ = !partial_;
    return nullptr;
  }
  if (how != by_model_zeros) is_set_ = false;
  if (!setup_.marks || is_set_) return is_set_ ? kLeftOut : nullptr;
  unheard_ = unheard_ || training_.holds_gradients();
  return nullptr;
}

// The optimizer that the program has given to the engine has slices for parameters, and grad() of those is
// empty.
bool ExpectedErrors::acts_on_slices(const Operation& operation) const {
  return operation.how == by_optimizer && setup_.source != Source::config;
}

bool ExpectedErrors::drops(const Operation& operation) const {
  if (operation.how == by_engine_zero_grad) return true;
  if (acts_on_slices(operation)) return false;
  return setup_.marks && unheard_;
}

const char* ExpectedErrors::of_group(const Operation& operation) {
  if (operation.how == of_rate) return setup_.has_schedule ? "in a run with a schedule" : nullptr;
  if (operation.how == of_decay) return nullptr;
  if (setup_.source == Source::config) return kLeftOut;
  if (operation.how == of_momentum && setup_.rule != Rule::sgd) return kLeftOut;
  if (unheard_ || is_set_ || of_step()) return kLeftOut;
  return operation.how == of_momentum ? "has set momentum of the optimizer's parameter group"
                                      : "as add_param_group() does";
}

const char* ExpectedErrors::of_states() {
  if (setup_.rule == Rule::sgd || unheard_) return kLeftOut;
  if (const char* refusal = by_marks()) return refusal;
  if (training_.has_gradients()) return kBetween;
  return away_ ? kAway : nullptr;
}

const char* ExpectedErrors::of_saving(bool loads) {
  if (const char* refusal = by_marks()) return refusal;
  if (away_) return kAway;
  if (training_.has_gradients()) return kBetween;
  if (loads) return training_.holds_gradients() ? "between the micro-steps of an optimizer step" : nullptr;
  return training_.can_save() ? nullptr : "cannot be saved: save after the step()";
}

}  // namespace zerorun::testing
