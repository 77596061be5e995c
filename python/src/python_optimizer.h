// An optimizer of the program that is written in Python (python/zerorun/flat_optimizer.py), as the engine
// calls it. Shared by Python and CoreEngine. Made with the GIL; its functions take the GIL themselves.
#pragma once

#include <torch/csrc/utils/pybind.h>

#include <memory>
#include <string>
#include <vector>

#include "engine/options.h"
#include "optim/client_optimizer.h"

namespace zerorun::python {

class PythonOptimizer : public ForeignOptimizer {
 public:
  /// `flat`: a FlatOptimizer of Python. `groups`: its groups, with their hyperparameters.
  PythonOptimizer(pybind11::object flat, const std::vector<ParameterGroup>& groups);
  ~PythonOptimizer() override;

  std::string name() const override { return name_; }
  std::vector<std::string> moments() const override { return moments_; }
  void lend(const at::Tensor& values, int group, const std::vector<at::Tensor>& memory) override;
  void set_steps(int64_t steps) override;
  /// Throws what Python raises.
  at::Tensor step(LossClosure closure) override;

 private:
  pybind11::object flat_;
  std::string name_;
  std::vector<std::string> moments_;
};

}  // namespace zerorun::python
