#include "python/src/python_optimizer.h"

#include <utility>

namespace zerorun::python {
namespace {

namespace py = pybind11;

std::vector<torch::optim::OptimizerParamGroup> options_of(const std::vector<ParameterGroup>& groups) {
  std::vector<torch::optim::OptimizerParamGroup> result;
  for (const ParameterGroup& group : groups) {
    auto options = std::make_unique<ForeignOptions>();
    options->lr = group.lr.value_or(0);
    options->weight_decay = group.weight_decay.value_or(0);
    options->betas = group.betas;
    result.emplace_back(group.parameters, std::move(options));
  }
  return result;
}

}  // namespace

PythonOptimizer::PythonOptimizer(py::object flat, const std::vector<ParameterGroup>& groups)
    : ForeignOptimizer(options_of(groups)), flat_(std::move(flat)) {
  name_ = flat_.attr("name").cast<std::string>();
  moments_ = flat_.attr("moments").cast<std::vector<std::string>>();
}

PythonOptimizer::~PythonOptimizer() {
  const py::gil_scoped_acquire gil;
  flat_ = py::object();
}

void PythonOptimizer::lend(const at::Tensor& values, int group, const std::vector<at::Tensor>& memory) {
  const py::gil_scoped_acquire gil;
  flat_.attr("lend")(values, group, memory);
}

void PythonOptimizer::set_steps(int64_t steps) {
  const py::gil_scoped_acquire gil;
  flat_.attr("set_steps")(steps);
}

at::Tensor PythonOptimizer::step(LossClosure /*closure*/) {
  const py::gil_scoped_acquire gil;
  flat_.attr("step")();
  return {};
}

}  // namespace zerorun::python
