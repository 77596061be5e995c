// The CPU as a Device: every call is synchronous. The kernels of a step use LibTorch's intra-op threads if
// the tensors are large enough.
#pragma once

#include "base/simd.h"
#include "device/device.h"

namespace zerorun {

class CpuDevice : public Device {
 public:
  /// `update_simd`: the instruction set of update(). All sets give the same bits; choose one for measurements
  /// only.
  explicit CpuDevice(Simd update_simd = widest_simd()) : update_simd_(update_simd) {}

  c10::Device location() const override { return c10::kCPU; }
  Streams& streams() override { return streams_; }
  Device& host() override { return *this; }
  int64_t alignment() const override { return 64; }  // a cache line, and a full AVX-512 register
  at::Tensor allocate(int64_t numel, at::ScalarType dtype) override;
  at::Tensor allocate_on_stream(int64_t numel, at::ScalarType dtype) override;
  at::Tensor allocate_on_host(int64_t numel, at::ScalarType dtype) override;

  void zero(const at::Tensor& values) override;
  void copy(const at::Tensor& to, const at::Tensor& from) override;
  void copy_scaled(const at::Tensor& to, const at::Tensor& from, float factor,
                   const FiniteCheck& finite_check) override;
  void add_scaled(const at::Tensor& to, const at::Tensor& from, float factor,
                  const FiniteCheck& finite_check) override;
  void copy_scaled(const at::Tensor& to, const at::Tensor& from, float factor) override;
  void add_scaled(const at::Tensor& to, const at::Tensor& from, float factor) override;
  void add_squares(const at::Tensor& tally, const at::Tensor& values, int64_t number, double weight) override;
  void publish(const at::Tensor& exchange, const at::Tensor& tally, int rank, int ranks) override;
  void decide(const at::Tensor& exchange, int ranks, const StepRule& rule) override;
  void update(const UpdateRule& rule, const UpdateTensors& tensors, const at::Tensor& facts) override;
  void follow_written(const at::Tensor& master, const at::Tensor& values) override;

 private:
  Streams streams_;
  Simd update_simd_;
};

}  // namespace zerorun
