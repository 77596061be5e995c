// The optimizers' formulas for one element in float32, for host and device: all kernels give the same bits if
// they are compiled without fused multiply-add. Plain structs, no LibTorch.
#pragma once

#include <cmath>
#include <cstdint>
#include <variant>

#include "device/host_device.h"

namespace zerorun {

/// One element of a model, with its optimizer state.
struct Element {
  float value;
  // The rule's moments.
  float first;   // Adam's exp_avg, a momentum buffer
  float second;  // Adam's exp_avg_sq
  float third;   // AMSGrad's max_exp_avg_sq
};

// Each rule has kMoments, the number of moments that it uses (first, second, third), and apply(), which
// updates an element with its gradient `g`.

/// Adam (Kingma and Ba; weight decay added to the gradient) and AdamW (Loshchilov and Hutter; decoupled).
struct AdamUpdate {
  static constexpr int kMoments = 2;
  float beta1;
  float new_in_first;  // 1 - beta1
  float beta2;
  float new_in_second;  // 1 - beta2
  float step_size;      // lr / (1 - beta1^t); lr without bias correction
  float root_factor;    // 1 / sqrt(1 - beta2^t); 1 without bias correction
  float eps;
  float gradient_decay;  // Adam: weight decay
  float value_decay;     // AdamW: lr * weight decay

  ZERORUN_HOST_DEVICE void apply(float g, Element& e) const {
    average(g, e);
    move(e, e.second);
  }

  ZERORUN_HOST_DEVICE void average(float g, Element& e) const {
    g += gradient_decay * e.value;
    e.first = beta1 * e.first + new_in_first * g;
    e.second = beta2 * e.second + new_in_second * (g * g);
  }

  ZERORUN_HOST_DEVICE void move(Element& e, float squares) const {
    // Subtracts decay and step together, so that the value is rounded once.
    e.value -= value_decay * e.value + step_size * e.first / (std::sqrt(squares) * root_factor + eps);
  }
};

/// Adam or AdamW that divides by the largest average of squares so far (Reddi et al. 2018, algorithm 2). As
/// in PyTorch, the maximum is taken before the bias correction.
struct AmsgradUpdate {
  static constexpr int kMoments = 3;
  AdamUpdate adam;

  ZERORUN_HOST_DEVICE void apply(float g, Element& e) const {
    adam.average(g, e);
    e.third = e.second > e.third ? e.second : e.third;
    adam.move(e, e.third);
  }
};

/// SGD without momentum. Also the last step of optimizers that compute a direction first.
struct SgdUpdate {
  static constexpr int kMoments = 0;
  float lr;
  float gradient_decay;  // weight decay
  float kept = 1;        // 1 - lr * weight decay if the decay is decoupled

  ZERORUN_HOST_DEVICE void apply(float g, Element& e) const {
    e.value = e.value * kept - lr * (g + gradient_decay * e.value);
  }
};

/// SGD with momentum, as PyTorch defines it.
struct MomentumUpdate {
  static constexpr int kMoments = 1;
  float lr;
  float gradient_decay;  // weight decay
  float momentum;
  float new_in_first;  // 1 - dampening; 1 in the first step
  float of_gradient;   // weight of the gradient in the step: 1 with Nesterov momentum, else 0
  float of_first;      // weight of the moment in the step: `momentum` with Nesterov momentum, else 1

  ZERORUN_HOST_DEVICE void apply(float g, Element& e) const {
    g += gradient_decay * e.value;
    e.first = momentum * e.first + new_in_first * g;
    e.value -= lr * (of_gradient * g + of_first * e.first);
  }
};

/// Adagrad (Duchi et al. 2011), as PyTorch defines it. Its moment is the sum of squared gradients.
struct AdagradUpdate {
  static constexpr int kMoments = 1;
  float step_size;  // lr / (1 + (t - 1) * lr_decay)
  float eps;
  float gradient_decay;  // weight decay

  ZERORUN_HOST_DEVICE void apply(float g, Element& e) const {
    g += gradient_decay * e.value;
    e.first += g * g;
    e.value -= step_size * g / (std::sqrt(e.first) + eps);
  }
};

/// RMSprop (Hinton 2012; centered: Graves 2013), as PyTorch defines it. Its moments: the average of squares;
/// if centered, the average of gradients; with momentum, the momentum buffer.
template <bool kCentered, bool kMomentum>
struct RmspropRule {
  static constexpr int kMoments = 1 + static_cast<int>(kCentered) + static_cast<int>(kMomentum);
  float lr;
  float alpha;
  float new_in_average;  // 1 - alpha
  float eps;
  float gradient_decay;  // weight decay
  float momentum;

  ZERORUN_HOST_DEVICE void apply(float g, Element& e) const {
    g += gradient_decay * e.value;
    e.first = alpha * e.first + new_in_average * (g * g);
    float squares = e.first;
    if constexpr (kCentered) {
      e.second = alpha * e.second + new_in_average * g;
      squares -= e.second * e.second;
      // Rounding may make the variance of equal gradients negative.
      squares = squares < 0 ? 0 : squares;
    }
    const float denominator = std::sqrt(squares) + eps;
    if constexpr (kMomentum) {
      float& buffer = kCentered ? e.third : e.second;
      buffer = momentum * buffer + g / denominator;
      e.value -= lr * buffer;
    } else {
      e.value -= lr * (g / denominator);
    }
  }
};

using RmspropUpdate = RmspropRule<false, false>;
using CenteredRmspropUpdate = RmspropRule<true, false>;
using RmspropMomentumUpdate = RmspropRule<false, true>;
using CenteredRmspropMomentumUpdate = RmspropRule<true, true>;

/// Lion (Chen et al. 2023, algorithm 2).
struct LionUpdate {
  static constexpr int kMoments = 1;
  float lr;
  float beta1;
  float new_in_step;  // 1 - beta1
  float beta2;
  float new_in_first;  // 1 - beta2
  float kept;          // 1 - lr * weight decay

  ZERORUN_HOST_DEVICE void apply(float g, Element& e) const {
    const float direction = beta1 * e.first + new_in_step * g;
    const float sign = direction > 0 ? 1.0F : direction < 0 ? -1.0F : 0.0F;
    e.first = beta2 * e.first + new_in_first * g;
    e.value = e.value * kept - lr * sign;
  }
};

/// Computes Lamb's direction (You et al. 2020) from moments like Adam's, and stores the direction in the
/// third moment. Does not change the value, because the step size depends on the whole parameter
/// (optim/lamb_optimizer.cpp).
struct LambDirection {
  static constexpr int kMoments = 3;
  float beta1;
  float new_in_first;  // 1 - beta1
  float beta2;
  float new_in_second;  // 1 - beta2
  float eps_in_root;    // either eps_in_root or eps is 0
  float eps;
  float decay;  // weight decay

  ZERORUN_HOST_DEVICE void apply(float g, Element& e) const {
    e.first = beta1 * e.first + new_in_first * g;
    e.second = beta2 * e.second + new_in_second * (g * g);
    e.third = e.first / (std::sqrt(e.second + eps_in_root) + eps) + decay * e.value;
  }
};

/// Any of the rules. The kernels of CPUs and GPUs are compiled for each of them.
struct UpdateRule : std::variant<AdamUpdate, SgdUpdate, MomentumUpdate, LionUpdate, AmsgradUpdate,
                                 AdagradUpdate, RmspropUpdate, CenteredRmspropUpdate, RmspropMomentumUpdate,
                                 CenteredRmspropMomentumUpdate, LambDirection> {
  using variant::variant;
};

}  // namespace zerorun
