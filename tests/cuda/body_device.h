// A CPU device that runs the bodies of the CUDA kernels, one simulated GPU thread after another. It gives a
// GPU's results without a GPU. Any thread.
#pragma once

#include "device/cpu_device.h"

namespace zerorun::testing {

class BodyDevice : public CpuDevice {
 public:
  /// Each kernel simulates `threads` GPU threads, from the last to the first.
  explicit BodyDevice(int64_t threads) : threads_(threads) {}

  void copy_scaled(const at::Tensor& to, const at::Tensor& from, float factor,
                   const FiniteCheck& finite_check) override;
  void add_scaled(const at::Tensor& to, const at::Tensor& from, float factor,
                  const FiniteCheck& finite_check) override;
  void copy_scaled(const at::Tensor& to, const at::Tensor& from, float factor) override;
  void add_scaled(const at::Tensor& to, const at::Tensor& from, float factor) override;
  void add_squares(const at::Tensor& tally, const at::Tensor& values, int64_t number, double weight) override;
  void update(const UpdateRule& rule, const UpdateTensors& tensors, const at::Tensor& facts) override;
  void follow_written(const at::Tensor& master, const at::Tensor& values) override;

 private:
  int64_t threads_;
};

}  // namespace zerorun::testing
