#include "tests/cuda/body_device.h"

#include <algorithm>
#include <array>
#include <vector>

#include "cuda/kernel_bodies.h"
#include "cuda/update_body.h"
#include "device/dtypes.h"
#include "device/step_facts.h"
#include "device/update_rules.h"
#include "device/update_span.h"

namespace zerorun::testing {
namespace {

using cuda::Bf16;
using cuda::Fp16;

template <typename T>
struct Type {
  using type = T;
};

template <typename Call>
void with_type(const at::Tensor& tensor, const Call& call) {
  switch (dtype_of(tensor)) {
    case Dtype::fp32:
      return call(Type<float>{});
    case Dtype::bf16:
      return call(Type<Bf16>{});
    case Dtype::fp16:
      return call(Type<Fp16>{});
  }
}

template <typename T>
T* memory_of(const at::Tensor& tensor) {
  return tensor.defined() ? static_cast<T*>(tensor.mutable_data_ptr()) : nullptr;
}

Tally& tally_in(const at::Tensor& tensor) {
  return *memory_of<Tally>(tensor);
}

// For each thread, from the last to the first: runs a copy of `body`, then calls `done` with this copy.
template <typename Body, typename Done>
void run_all(const Body& body, int64_t numel, int64_t threads, const Done& done) {
  const cuda::Division division = body.division(numel);
  for (int64_t thread = threads - 1; thread >= 0; --thread) {
    Body own = body;
    cuda::run(own, division, {thread, threads});
    done(own);
  }
}

// Runs `Body`, which copies or adds. Returns the slot of a Tally to which all threads report (0: all values
// are finite).
template <template <typename, typename> typename Body>
uint64_t scale(const at::Tensor& to, const at::Tensor& from, float factor, int64_t number, int64_t threads) {
  uint64_t slot = 0;
  with_type(to, [&](auto to_type) {
    with_type(from, [&](auto from_type) {
      using To = typename decltype(to_type)::type;
      using From = typename decltype(from_type)::type;
      const Body<To, From> body{memory_of<To>(to), memory_of<From>(from), factor, number};
      run_all(body, to.numel(), threads, [&](const auto& own) { cuda::keep_larger(slot, own.slot); });
    });
  });
  return slot;
}

// Runs the threads of each block, which wait for one another between update() and store().
template <typename State, typename Rule>
void update_codes_by(const Rule& rule, const UpdateSpan& span, const at::Tensor& gradient, float factor) {
  with_type(gradient, [&](auto type) {
    cuda::CodedUpdate<Rule, typename decltype(type)::type, State> body(rule, span);
    body.factor = factor;
    for (int64_t begin = 0; begin < span.numel; begin += kCodedBlock) {
      const int64_t end = std::min(begin + kCodedBlock, span.numel);
      std::vector<Element> elements;
      uint32_t first = 0, second = 0;
      for (int64_t index = begin; index < end; ++index) {
        elements.push_back(body.update(index, kSignedBook, kUnsignedBook));
        first = std::max(first, magnitude_key(elements.back().first));
        second = std::max(second, magnitude_key(elements.back().second));
      }
      for (int64_t index = begin; index < end; ++index)
        body.store(index, elements[index - begin], first, second, kSignedBook.limits, kUnsignedBook.limits);
    }
  });
}

template <typename Rule>
void update_codes(const Rule& rule, const UpdateSpan& span, const at::Tensor& gradient, float factor) {
  if (span.values_dtype == Dtype::fp32) return update_codes_by<cuda::WideState>(rule, span, gradient, factor);
  update_codes_by<cuda::NarrowState>(rule, span, gradient, factor);
}

double sum_of_block(std::vector<double> sums) {
  for (int distance = cuda::kThreads / 2; distance > 0; distance /= 2) {
    for (int thread = cuda::kThreads - 1; thread >= 0; --thread) {
      cuda::add_upper_half(sums.data(), thread, distance);
    }
  }
  return sums[0];
}

template <typename T>
void add_squares_of(const cuda::Squares<T>& squares, double weight, Tally& tally) {
  const int count = cuda::parts_of(squares.numel);
  std::vector<double> parts(count);
  std::vector<double> sums(cuda::kThreads);
  for (int part = count - 1; part >= 0; --part) {
    for (int thread = 0; thread < cuda::kThreads; ++thread)
      sums[thread] = squares.sum(part, thread, tally.sum);
    parts[part] = sum_of_block(sums);
  }
  for (int thread = 0; thread < cuda::kThreads; ++thread) {
    sums[thread] = cuda::sum_of_parts(parts.data(), count, thread);
  }
  tally.squares += weight * sum_of_block(sums);
}

}  // namespace

void BodyDevice::copy_scaled(const at::Tensor& to, const at::Tensor& from, float factor,
                             const FiniteCheck& finite_check) {
  const uint64_t told = scale<cuda::CopyScaled>(to, from, factor, finite_check.number, threads_);
  cuda::keep_larger(tally_in(finite_check.tally).gradient, told);
}

void BodyDevice::add_scaled(const at::Tensor& to, const at::Tensor& from, float factor,
                            const FiniteCheck& finite_check) {
  const uint64_t told = scale<cuda::AddScaled>(to, from, factor, finite_check.number, threads_);
  cuda::keep_larger(tally_in(finite_check.tally).gradient, told);
}

void BodyDevice::copy_scaled(const at::Tensor& to, const at::Tensor& from, float factor) {
  scale<cuda::CopyScaled>(to, from, factor, 1, threads_);
}

void BodyDevice::add_scaled(const at::Tensor& to, const at::Tensor& from, float factor) {
  scale<cuda::AddScaled>(to, from, factor, 1, threads_);
}

void BodyDevice::add_squares(const at::Tensor& tally, const at::Tensor& values, int64_t number,
                             double weight) {
  with_type(values, [&](auto type) {
    using T = typename decltype(type)::type;
    const T* memory = memory_of<T>(values);
    const bool aligned = reinterpret_cast<uintptr_t>(memory) % cuda::kAccess == 0;
    add_squares_of(cuda::Squares<T>{memory, values.numel(), number, aligned}, weight, tally_in(tally));
  });
}

void BodyDevice::update(const UpdateRule& rule, const UpdateTensors& tensors, const at::Tensor& facts) {
  const auto& known = *memory_of<StepFacts>(facts);
  if (known.apply == 0) return;
  const UpdateSpan span = span_of(tensors);
  auto run_body = [&]<typename State>(const auto& formula) {
    with_type(tensors.gradient, [&](auto type) {
      using Gradient = typename decltype(type)::type;
      using Body = cuda::Update<std::decay_t<decltype(formula)>, Gradient, State>;
      Body body(formula, span);
      body.factor = known.factor;
      run_all(body, span.numel, threads_, [](const Body&) {});
    });
  };
  std::visit(
      [&](const auto& formula) {
        if (span.has_codes()) return update_codes(formula, span, tensors.gradient, known.factor);
        if (span.is_all_float32()) return run_body.template operator()<cuda::WideState>(formula);
        run_body.template operator()<cuda::NarrowState>(formula);
      },
      rule);
}

void BodyDevice::follow_written(const at::Tensor& master, const at::Tensor& values) {
  with_type(values, [&](auto type) {
    using From = typename decltype(type)::type;
    const cuda::FollowWritten<From> body{memory_of<float>(master), memory_of<From>(values)};
    run_all(body, values.numel(), threads_, [](const auto&) {});
  });
}

}  // namespace zerorun::testing
