#include "tests/random_programs/plain_training.h"

#include <bit>
#include <cmath>
#include <limits>

namespace zerorun::testing {
namespace {

// Of the config's optimizers.
constexpr double kBeta1 = 0.9, kBeta2 = 0.999, kEpsilon = 1e-8, kMomentum = 0.9;

at::ScalarType type_of(Precision precision) {
  return precision == Precision::fp32 ? at::kFloat : precision == Precision::bf16 ? at::kBFloat16 : at::kHalf;
}

// `tensor` * `factor` in float32, rounded once to `type`.
at::Tensor scaled(const at::Tensor& tensor, double factor, at::ScalarType type) {
  return (tensor.to(at::kFloat) * factor).to(type);
}

// Adds `more` to `sum` in float32 and rounds to the dtype of `sum`.
void add(at::Tensor& sum, const at::Tensor& more) {
  sum = (sum.to(at::kFloat) + more.to(at::kFloat)).to(sum.scalar_type());
}

float rounded(double value) {
  return static_cast<float>(value);
}

}  // namespace

double scheduled_rate(int64_t applied, int group) {
  return kLearningRate * (1 + 0.25 * static_cast<double>(applied % 4)) / (1 + group);
}

PlainTraining::PlainTraining(const Program& program)
    : program_(program),
      setup_(program.setup),
      training_(type_of(setup_.precision)),
      travelling_(type_of(setup_.communication)),
      accumulating_(type_of(setup_.accumulation)) {
  // A sum over ranks in fp16 could overflow although no gradient does. So gradients are divided by a power of
  // two before the sum.
  const double before =
      setup_.communication == Precision::fp16 ? std::bit_ceil(static_cast<unsigned>(setup_.ranks)) : 1;
  factor_ = 1 / before;
  divisor_ = setup_.ranks / before;
  for (int rank = 0; rank < setup_.ranks; ++rank) models_.push_back(std::make_shared<Model>(program));
  for (size_t index = 0; index < program.parameters.size(); ++index) {
    if (!program.parameters[index].frozen) trained_.push_back(static_cast<int>(index));
  }
  begin(true);
}

void PlainTraining::begin(bool first) {
  torch::NoGradGuard no_grad;
  if (!first && setup_.stage == 3) {
    for (auto& model : models_) model = std::make_shared<Model>(program_);
  }
  states_.assign(program_.parameters.size(), {});
  gradients_.assign(program_.parameters.size(), {});
  for (size_t index = 0; index < program_.parameters.size(); ++index) {
    const at::Tensor given = parameters(0)[index].detach().clone();
    for (const auto& model : models_) {
      at::Tensor& own = model->all[index];
      if (own.scalar_type() != training_) own.set_data(own.to(training_));
      own.copy_(given);  // keeps gaps, which matter for the order of sums in LibTorch's matrix products
      own.mutable_grad().reset();
      own.requires_grad_(!program_.parameters[index].frozen);
    }
    State& state = states_[index];
    state.master = setup_.master_from_fp32 ? given.to(at::kFloat) : given.to(training_).to(at::kFloat);
    state.first = at::zeros_like(state.master);
    state.second = at::zeros_like(state.master);
  }
  made_sums_ = departed_ = has_gradients_ = holds_gradients_ = was_applied_ = false;
  now_ = {.loss_scale = std::ldexp(1.0, setup_.scale_power), .hysteresis = 1 + setup_.scale_power / 4 % 2};
  norm_ = 0;
  boundary_.reset();
  for (int group = 0; group < kGroups; ++group) {
    rates_[group] = kLearningRate / (1 + group);
    decays_[group] = setup_.decay ? kWeightDecay : 0;
  }
}

bool PlainTraining::updates() const {
  return boundary_.value_or(now_.micro_steps + 1 >= setup_.micro_steps);
}

at::ScalarType PlainTraining::kept() const {
  if (by_shards()) return accumulating_;
  return accumulating_ != travelling_ && whole_in_sums() ? accumulating_ : travelling_;
}

// Returns whether a rank adds up its gradients in the accumulation dtype, in memory separate from the buffers
// that it sends. Matters at stages 0 and 1 only.
bool PlainTraining::sums_apart() const {
  if (accumulating_ == travelling_) return false;
  return made_sums_ || whole_in_sums();
}

void PlainTraining::drop_gradients(bool threw) {
  // When a backward threw, the engine had already allocated separate sums. So made_sums_ is set as in
  // backward().
  if (threw && !by_shards() && !is_last(true) && !departed_) made_sums_ = true;
  gradients_.assign(program_.parameters.size(), {});
  departed_ = has_gradients_ = holds_gradients_ = false;
}

void PlainTraining::backward(const std::vector<at::Tensor>& losses, bool retain, bool reduces, bool plain) {
  const bool boundary = is_last(reduces);
  if (!by_shards() && !boundary && !departed_) made_sums_ = true;
  reached_.assign(ranks(), std::vector<char>(program_.parameters.size()));
  std::vector<std::vector<at::Tensor>> found(program_.parameters.size());
  for (int rank = 0; rank < ranks(); ++rank) {
    losses[rank].backward(at::full_like(losses[rank], plain ? scale() : scale() / setup_.micro_steps),
                          retain);
    for (int index : trained_) {
      found[index].push_back(std::exchange(parameters(rank)[index].mutable_grad(), at::Tensor()));
      reached_[rank][index] = found[index].back().defined();
    }
  }
  torch::NoGradGuard no_grad;
  const float divided = plain ? static_cast<float>(1.0 / setup_.micro_steps) : 1.0F;
  for (int index : trained_) take(gradients_[index], found[index], states_[index].master, divided);
  if (!by_shards() && boundary && !departed_) reduce_local();
  has_gradients_ = holds_gradients_ = true;
}

// Returns the sum over ranks of the gradients that they send. Adds them in float32 in rank order and rounds
// the result once; on two levels first those of each host, whose sum is rounded too.
at::Tensor PlainTraining::over_ranks(const std::vector<at::Tensor>& by_rank, const at::Tensor& like) const {
  const int on_host = ranks_summed_first(setup_);
  at::Tensor sum;
  for (int first = 0; first < ranks(); first += on_host) {
    at::Tensor of_host;
    for (int rank = first; rank < first + on_host; ++rank) {
      const at::Tensor& own = by_rank[rank];
      const at::Tensor part = own.defined() ? own.to(at::kFloat) : at::zeros_like(like);
      of_host = of_host.defined() ? of_host + part : part;
    }
    of_host = of_host.to(travelling_).to(at::kFloat);
    sum = sum.defined() ? sum + of_host : of_host;
  }
  return sum.to(travelling_);
}

void PlainTraining::take(Gradient& gradient, const std::vector<at::Tensor>& by_rank, const at::Tensor& like,
                         float divided) const {
  const auto factor = static_cast<double>(static_cast<float>(factor_) * divided);
  if (by_shards()) {
    std::vector<at::Tensor> travelling(ranks());
    for (int rank = 0; rank < ranks(); ++rank) {
      if (by_rank[rank].defined()) travelling[rank] = scaled(by_rank[rank], factor, travelling_);
    }
    const at::Tensor sum = over_ranks(travelling, like);
    if (gradient.reduced.defined()) {
      add(gradient.reduced, sum);
    } else {
      gradient.reduced = sum.to(accumulating_);
    }
    return;
  }
  std::vector<at::Tensor>& sums = departed_ ? gradient.late : gradient.local;
  sums.resize(ranks());
  const bool apart = departed_ || sums_apart();
  for (int rank = 0; rank < ranks(); ++rank) {
    if (!by_rank[rank].defined()) continue;
    if (!sums[rank].defined()) {
      sums[rank] =
          apart ? scaled(by_rank[rank], divided, accumulating_) : scaled(by_rank[rank], factor, travelling_);
    } else {
      add(sums[rank], by_rank[rank].to(at::kFloat) * (apart ? divided : factor));
    }
  }
}

void PlainTraining::reduce_local() {
  departed_ = true;
  for (int index : trained_) {
    Gradient& gradient = gradients_[index];
    gradient.local.resize(ranks());
    if (sums_apart()) {
      for (at::Tensor& local : gradient.local) {
        if (local.defined()) local = scaled(local, factor_, travelling_);
      }
    }
    gradient.reduced = over_ranks(gradient.local, states_[index].master).to(kept());
  }
}

// Reduces the gradients that have not been reduced yet.
void PlainTraining::finish_reduction() {
  for (int index : trained_) {
    Gradient& gradient = gradients_[index];
    if (by_shards()) {
      if (!gradient.reduced.defined())
        gradient.reduced = at::zeros_like(states_[index].master).to(accumulating_);
      continue;
    }
    if (!departed_ || gradient.late.empty()) continue;
    for (at::Tensor& late : gradient.late) {
      if (late.defined()) late = scaled(late, factor_, travelling_);
    }
    add(gradient.reduced, over_ranks(gradient.late, states_[index].master));
    gradient.late.clear();
  }
  if (!by_shards() && !departed_) reduce_local();
}

double PlainTraining::norm() const {
  double squares = 0;
  for (int index : trained_)
    squares += gradients_[index].reduced.to(at::kDouble).square().sum().item<double>();
  if (!(squares < HUGE_VAL)) return HUGE_VAL;
  const double norm = std::sqrt(squares) / (divisor_ * scale());
  return norm <= std::numeric_limits<float>::max() ? static_cast<double>(rounded(norm)) : norm;
}

double PlainTraining::rate_of(int group) const {
  if (!setup_.has_schedule) return rates_[group];
  if (setup_.source == Source::config) return scheduled_rate(now_.applied, group);
  // LibTorch's StepLR does so one step late.
  const int64_t halved = now_.applied == 0 ? 0 : (now_.applied - 1) / kStepSize;
  return std::ldexp(kLearningRate / (1 + group), -static_cast<int>(halved));
}

PlainTraining::Ending PlainTraining::step() {
  torch::NoGradGuard no_grad;
  const bool boundary = updates();
  ++now_.micro_steps;
  has_gradients_ = was_applied_ = false;
  if (!boundary) return Ending::goes_on;
  finish_reduction();
  norm_ = norm();
  was_applied_ = norm_ != HUGE_VAL;
  if (was_applied_) update(norm_);
  gradients_.assign(program_.parameters.size(), {});
  departed_ = holds_gradients_ = false;
  now_.micro_steps = 0;
  ++now_.steps;
  if (!follow_loss_scale(!was_applied_)) return Ending::scale_at_minimum;
  const bool throws = was_applied_ && setup_.has_schedule && now_.applied == setup_.schedule_throws_at;
  return throws ? Ending::schedule_throws : Ending::goes_on;
}

void PlainTraining::update(double norm) {
  const double over = setup_.clips ? (norm + 1e-6) / kClipping : 1;
  const double factor = rounded(1 / (divisor_ * scale() * std::max(over, 1.0)));
  std::vector<at::Tensor> gradients(states_.size());
  for (int index : trained_) {
    gradients[index] = gradients_[index].reduced.to(at::kFloat) * factor;
    states_[index].master = master_of(index).clone();
  }
  if (setup_.source != Source::config) {
    apply_torch_rule(gradients);
  } else {
    for (int index : trained_) apply_rule(states_[index], gradients[index], program_.parameters[index].group);
  }
  ++now_.applied;
  ++now_.optimizer_steps;
  for (int index : trained_) {
    for (const auto& model : models_) model->all[index].copy_(states_[index].master.to(training_));
  }
}

// Master weights take over the values that the program wrote to 16-bit parameters.
at::Tensor PlainTraining::master_of(int index) const {
  const at::Tensor& master = states_[index].master;
  const at::Tensor values = parameters(0)[index].detach();
  return at::where(master.to(training_).eq(values), master, values.to(at::kFloat));
}

void PlainTraining::apply_torch_rule(const std::vector<at::Tensor>& gradients) {
  Groups groups;
  for (int index : trained_) {
    states_[index].master.mutable_grad() = gradients[index];
    groups[program_.parameters[index].group].push_back(states_[index].master);
  }
  const auto optimizer = make_optimizer(setup_, groups);
  for (int group = 0; group < kGroups; ++group) {
    optimizer->param_groups()[group].options().set_lr(rate_of(group));
    zerorun::testing::set_decay(*optimizer, group, decays_[group]);
  }
  if (setup_.rule != Rule::sgd) {
    for (int index : trained_) {
      const State& state = states_[index];
      set_state(*optimizer, setup_, state.master, now_.optimizer_steps, state.first, state.second);
    }
  }
  optimizer->step();
  for (int index : trained_) states_[index].master.mutable_grad().reset();
}

void PlainTraining::apply_rule(State& state, at::Tensor gradient, int group) const {
  const double rate = rate_of(group);
  const double decay = decays_[group];
  if (setup_.rule == Rule::adam_w) {
    const auto steps = static_cast<double>(now_.optimizer_steps + 1);
    const double step_size = rounded(rate / (1 - std::pow(kBeta1, steps)));
    const double root = rounded(1 / std::sqrt(1 - std::pow(kBeta2, steps)));
    state.first = state.first * rounded(kBeta1) + gradient * rounded(1 - kBeta1);
    state.second = state.second * rounded(kBeta2) + (gradient * gradient) * rounded(1 - kBeta2);
    // LibTorch's float32 sqrt is a vector function that does not always round to nearest. The float64 sqrt,
    // rounded to float32, does.
    const at::Tensor roots = state.second.to(at::kDouble).sqrt().to(at::kFloat);
    const at::Tensor move = state.first * step_size / (roots * root + rounded(kEpsilon));
    state.master = state.master - (state.master * rounded(rate * decay) + move);
    return;
  }
  gradient = gradient + state.master * decay;
  if (setup_.rule == Rule::momentum) {
    state.first = state.first * rounded(kMomentum) + gradient;
    gradient = state.first;
  }
  state.master = state.master - gradient * rounded(rate);
}

// Changes the loss scale by DeepSpeed's rule. Returns false if the scale must fall but is already at its
// minimum.
bool PlainTraining::follow_loss_scale(bool overflow) {
  if (setup_.precision != Precision::fp16 || setup_.fixed_scale) return true;
  const int64_t number = now_.steps - 1;
  if (overflow) {
    now_.last_overflow = number;
    if (now_.hysteresis > 1) {
      --now_.hysteresis;
      return true;
    }
    const bool falls = now_.loss_scale > 1;
    now_.loss_scale = std::max(now_.loss_scale / 2, 1.0);
    return falls;
  }
  const int64_t without = number - now_.last_overflow - 1;
  if (without > 0 && without % kScaleWindow == 0) {
    now_.loss_scale *= 2;
    now_.hysteresis = 1 + setup_.scale_power / 4 % 2;
  }
  return true;
}

std::string PlainTraining::report() const {
  return c10::str("steps ", now_.steps, ", applied ", was_applied_, ", skipped ", now_.steps - now_.applied,
                  ", scale ", scale(), ", rate ", rate_of(0));
}

}  // namespace zerorun::testing
