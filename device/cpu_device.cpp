#include "device/cpu_device.h"

#include <ATen/TensorIterator.h>
#include <ATen/ops/eq.h>
#include <ATen/ops/where.h>
#include <c10/core/GradMode.h>

#include <algorithm>
#include <cmath>
#include <cstring>

#include "base/error.h"
#include "device/dtypes.h"
#include "device/gradient_copy.h"
#include "device/gradient_norm.h"
#include "device/moment_codes.h"
#include "device/step_facts.h"
#include "device/update_rules.h"
#include "device/update_span.h"
#include "device/zeroed_memory.h"

namespace zerorun {
namespace {

// A second thread does not pay off below this many elements.
constexpr int64_t kGrain = 32768;

// Divides `values` into parts and calls body(begin, length) for each part on LibTorch's intra-op
// threads. It uses TensorIterator and not at::parallel_for(), which is a template: a file that instantiates
// it must be compiled for, and linked to, LibTorch's OpenMP runtime.
template <typename Body>
void for_slices_in_parallel(const at::Tensor& values, const Body& body, int64_t grain = kGrain) {
  const char* start = static_cast<const char*>(values.const_data_ptr());
  const auto element = static_cast<int64_t>(values.element_size());
  at::TensorBase whole = values;
  at::TensorIterator::nullary_op(whole).for_each(
      [&](char** data, const int64_t*, int64_t inner, int64_t outer) {
        body((data[0] - start) / element, inner * outer);
      },
      grain);
}

Tally& tally_in(const at::Tensor& tensor) {
  return *static_cast<Tally*>(tensor.mutable_data_ptr());
}

void tell(uint64_t& slot, int64_t number) {
  slot = std::max(slot, slot_of(number));
}

void tell_unless(bool finite, const at::Tensor& from, const FiniteCheck& finite_check) {
  if (finite) return;
  const bool too_large = first_not_finite(from) < 0;
  tell(tally_in(finite_check.tally).gradient, finite_check.number + too_large);
}

}  // namespace

Device& Device::host() {
  return cpu_device();
}

at::Tensor CpuDevice::allocate(int64_t numel, at::ScalarType dtype) {
  return zeroed_memory(numel, dtype);
}

at::Tensor CpuDevice::allocate_on_stream(int64_t numel, at::ScalarType dtype) {
  return zeroed_memory(numel, dtype);
}

at::Tensor CpuDevice::allocate_on_host(int64_t numel, at::ScalarType dtype) {
  return zeroed_memory(numel, dtype);
}

void CpuDevice::zero(const at::Tensor& values) {
  if (values.numel() > 0) std::memset(values.mutable_data_ptr(), 0, values.nbytes());
}

void CpuDevice::copy(const at::Tensor& to, const at::Tensor& from) {
  ZR_CHECK(to.nbytes() == from.nbytes(), "copies of different sizes");
  if (to.numel() > 0) std::memcpy(to.mutable_data_ptr(), from.const_data_ptr(), from.nbytes());
}

void CpuDevice::copy_scaled(const at::Tensor& to, const at::Tensor& from, float factor,
                            const FiniteCheck& finite_check) {
  tell_unless(zerorun::copy_scaled(to, from, factor), from, finite_check);
}

void CpuDevice::add_scaled(const at::Tensor& to, const at::Tensor& from, float factor,
                           const FiniteCheck& finite_check) {
  tell_unless(zerorun::add_scaled(to, from, factor), from, finite_check);
}

void CpuDevice::copy_scaled(const at::Tensor& to, const at::Tensor& from, float factor) {
  zerorun::copy_scaled(to, from, factor);
}

void CpuDevice::add_scaled(const at::Tensor& to, const at::Tensor& from, float factor) {
  zerorun::add_scaled(to, from, factor);
}

void CpuDevice::add_squares(const at::Tensor& tally, const at::Tensor& values, int64_t number,
                            double weight) {
  const double squares = sum_of_squares(values.const_data_ptr(), dtype_of(values), values.numel());
  tally_in(tally).squares += weight * squares;
  if (!std::isfinite(squares)) tell(tally_in(tally).sum, number + first_not_finite(values));
}

void CpuDevice::publish(const at::Tensor& exchange, const at::Tensor& tally, int rank, int ranks) {
  zerorun::publish(tally_in(tally), exchange.mutable_data_ptr<double>(), rank, ranks);
  tally_in(tally) = {};
}

void CpuDevice::decide(const at::Tensor& exchange, int ranks, const StepRule& rule) {
  auto* exchanged = exchange.mutable_data_ptr<double>();
  const StepFacts facts = zerorun::decide(exchanged, ranks, rule);
  std::memcpy(exchanged + exchanged_numel(ranks), &facts, sizeof facts);
}

void CpuDevice::update(const UpdateRule& rule, const UpdateTensors& tensors, const at::Tensor& facts) {
  const auto& known = *static_cast<const StepFacts*>(facts.const_data_ptr());
  if (known.apply == 0) return;
  const UpdateSpan span = span_of(tensors);
  if (tensors.has_codes()) {
    return for_slices_in_parallel(
        tensors.first_scales,
        [&](int64_t first, int64_t blocks) {
          const int64_t begin = first * kCodedBlock;
          const int64_t length = std::min(blocks * kCodedBlock, span.numel - begin);
          zerorun::update(rule, known.factor, span.slice(begin, length), update_simd_);
        },
        kGrain / kCodedBlock);
  }
  for_slices_in_parallel(tensors.values, [&](int64_t begin, int64_t length) {
    zerorun::update(rule, known.factor, span.slice(begin, length), update_simd_);
  });
}

void CpuDevice::follow_written(const at::Tensor& master, const at::Tensor& values) {
  c10::NoGradGuard no_grad;
  const at::Tensor unchanged = at::eq(master.to(values.scalar_type()), values);
  at::Tensor(master).copy_(at::where(unchanged, master, values.to(at::kFloat)));
}

Device& cpu_device() {
  static CpuDevice device;
  return device;
}

}  // namespace zerorun
