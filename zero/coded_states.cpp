#include "zero/coded_states.h"

#include <ATen/ops/empty.h>

#include "device/moment_codes.h"

namespace zerorun {
namespace {

// An average of squares has no signs: the second moment of rules, as UpdateSpan has it.
bool has_signs(const StateTensor& state) {
  return state.name != "exp_avg_sq";
}

struct Coded {
  at::Tensor codes;
  at::Tensor scales;
};

Coded coded(const SliceStore& store, int bucket, const StateTensor& state, Extent extent) {
  if (extent == Extent::slice) return {state.own, store.scales(bucket, state.name, store.rank())};
  return {state.memory, state.scales};
}

}  // namespace

at::Tensor numbers_of(const SliceStore& store, int bucket, const StateTensor& state, Extent extent) {
  const auto [codes, scales] = coded(store, bucket, state, extent);
  const at::Tensor codes_here = codes.cpu();
  const at::Tensor scales_here = scales.cpu();
  at::Tensor numbers = at::empty({codes.numel()}, at::kFloat);
  decode(codes_here.const_data_ptr<uint8_t>(), scales_here.const_data_ptr<float>(), codes.numel(),
         has_signs(state), numbers.mutable_data_ptr<float>());
  return numbers;
}

void put_numbers(const SliceStore& store, int bucket, const StateTensor& state, Extent extent,
                 const at::Tensor& numbers) {
  const auto [codes, scales] = coded(store, bucket, state, extent);
  const at::Tensor new_codes = at::empty({codes.numel()}, at::kByte);
  const at::Tensor new_scales = at::empty({scales.numel()}, at::kFloat);
  encode(numbers.const_data_ptr<float>(), numbers.numel(), has_signs(state),
         new_codes.mutable_data_ptr<uint8_t>(), new_scales.mutable_data_ptr<float>());
  codes.copy_(new_codes);
  scales.copy_(new_scales);
}

}  // namespace zerorun
