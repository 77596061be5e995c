// Computes the results of training with plain LibTorch, by the rules of docs/architecture.md ("Precision",
// "Why the bits are the same"). One thread holds every rank's parameters, without buckets, collectives or any
// engine code.
#pragma once

#include <torch/torch.h>

#include <array>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "tests/random_programs/model.h"
#include "tests/random_programs/torch_optimizer.h"

namespace zerorun::testing {

inline constexpr double kClipping = 0.5;
inline constexpr int kScaleWindow = 2;
/// The learning rate of the program's own schedule function for `group` after `applied` applied steps.
double scheduled_rate(int64_t applied, int group);
class PlainTraining {
 public:
  explicit PlainTraining(const Program& program);

  /// The parameters of `rank`. They differ between ranks only where the program makes them differ.
  const std::vector<at::Tensor>& parameters(int rank) const { return models_[rank]->all; }
  int ranks() const { return setup_.ranks; }

  /// Does the work of initialize(): all ranks get rank 0's values, and earlier optimizer state and gradients
  /// are dropped. At stage 3 every call except the first makes a new model, because the values become
  /// inaccessible when an engine is destroyed.
  void begin(bool first);
  /// Runs backward of every rank's loss. `reduces` is false inside a no_sync scope. If `plain`, the program
  /// calls loss.backward() instead of engine.backward(). The engine then divides gradients by the number of
  /// micro-steps when it copies them.
  void backward(const std::vector<at::Tensor>& losses, bool retain, bool reduces, bool plain);
  /// The trained parameters for which the last backward has brought `rank` a gradient.
  const std::vector<char>& reached(int rank) const { return reached_[rank]; }
  /// Drops all gradients since the last optimizer step. `threw`: because a backward threw on all ranks.
  void drop_gradients(bool threw);
  /// Whether there was a backward since the last step.
  bool has_gradients() const { return has_gradients_; }
  /// Whether there was a backward since the last optimizer step, or in the window that load() has continued.
  bool holds_gradients() const { return holds_gradients_; }
  /// Whether the next step() updates.
  bool updates() const;
  void set_boundary(bool is_boundary) { boundary_ = is_boundary; }
  /// The gradient of a trained parameter that the next step() applies, and its replacement.
  at::Tensor gradient(int index);
  void set_gradient(int index, const at::Tensor& values);
  /// Whether all gradients are finite that gradient() has made complete.
  bool finite() const;
  /// The first moment of a trained parameter: a tensor that the caller may change.
  at::Tensor moment(int index) { return states_[index].first; }
  void set_rate(int group, double rate) { rates_[group] = rate; }
  void set_decay(int group, double decay) { decays_[group] = decay; }

  /// What torch::save(optimizer) writes.
  struct Moments {
    std::vector<at::Tensor> first, second;  // by parameter
    int64_t steps = 0;
    std::array<double, kGroups> rates = {}, decays = {};
  };
  Moments moments() const;
  void set_moments(const Moments& moments);
  struct Checkpoint;
  /// Whether a window's gradients can be saved: they are not reduced yet, or with every backward.
  bool can_save() const;
  std::shared_ptr<const Checkpoint> save(bool with_frozen) const;
  void load(const Checkpoint& checkpoint);

  enum class Ending { goes_on, schedule_throws, scale_at_minimum };
  Ending step();
  /// The numbers that the engine reports about its last step, as text; the norm is apart.
  std::string report() const;
  double last_norm() const { return norm_; }

 private:
  // The gradient of one parameter in one accumulation window.
  struct Gradient {
    std::vector<at::Tensor> local;  // by rank, before the reduction; undefined: none
    std::vector<at::Tensor> late;   // by rank, computed after the reduction has started (stages 0 and 1)
    at::Tensor reduced;             // summed over ranks
  };
  struct State {
    at::Tensor master;  // float32
    at::Tensor first;
    at::Tensor second;
  };
  // What a checkpoint restores apart from tensors.
  struct Progress {
    int64_t micro_steps = 0;  // since the last optimizer step
    int64_t steps = 0;
    int64_t applied = 0;
    int64_t optimizer_steps = 0;  // as applied, unless set_moments() has changed it
    double loss_scale = 1;
    int hysteresis = 1;
    int64_t last_overflow = -1;
  };

  bool by_shards() const { return setup_.stage >= 2; }
  bool is_last(bool reduces) const { return reduces && setup_.source != Source::enable_zero && updates(); }
  bool whole_in_sums() const { return setup_.micro_steps > 1 || accumulating_ != at::kFloat; }
  at::ScalarType kept() const;  // dtype of reduced gradients
  bool sums_apart() const;
  double scale() const { return setup_.precision == Precision::fp16 ? now_.loss_scale : 1; }
  at::Tensor over_ranks(const std::vector<at::Tensor>& by_rank, const at::Tensor& like) const;
  void take(Gradient& gradient, const std::vector<at::Tensor>& by_rank, const at::Tensor& like,
            float divided) const;
  void reduce_local();
  void finish_reduction();
  double norm() const;
  void update(double norm);
  void apply_rule(State& state, at::Tensor gradient, int group) const;
  void apply_torch_rule(const std::vector<at::Tensor>& gradients);
  bool follow_loss_scale(bool overflow);
  double rate_of(int group) const;
  at::Tensor master_of(int index) const;

  const Program& program_;
  const Setup& setup_;
  at::ScalarType training_;
  at::ScalarType travelling_;
  at::ScalarType accumulating_;
  double factor_;   // multiplies gradients before the sum over ranks
  double divisor_;  // divides the sum over ranks
  std::vector<std::shared_ptr<Model>> models_;
  std::vector<int> trained_;
  std::vector<State> states_;        // one for each parameter; unused for frozen parameters
  std::vector<Gradient> gradients_;  // one for each parameter
  bool made_sums_ = false;           // stages 0 and 1: the engine has allocated separate sums
  bool departed_ = false;            // this window's gradients have been reduced (stages 0 and 1)
  bool has_gradients_ = false;
  bool holds_gradients_ = false;
  std::vector<std::vector<char>> reached_;  // by rank and parameter
  std::optional<bool> boundary_;            // set by the program
  std::array<double, kGroups> rates_ = {}, decays_ = {};
  Progress now_;
  bool was_applied_ = false;
  double norm_ = 0;
};

struct PlainTraining::Checkpoint {
  Moments moments;
  std::vector<at::Tensor>
      values;  // by parameter: master weights; undefined for a frozen one that is left out
  Progress progress;
  std::vector<Gradient> gradients;  // of a window that has begun
};

}  // namespace zerorun::testing
