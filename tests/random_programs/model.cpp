#include "tests/random_programs/model.h"

#include <algorithm>
#include <cstring>

#include "activations/recomputable.h"

namespace zerorun::testing {
namespace {

constexpr int64_t kRows = 2;
constexpr int64_t kWidth = 8;  // columns of the activations; no parameter is wider

// An operation that copies its input and whose backward throws.
struct Failing : torch::autograd::Function<Failing> {
  static at::Tensor forward(torch::autograd::AutogradContext* /*context*/, at::Tensor values) {
    return values.clone();
  }
  static torch::autograd::variable_list backward(torch::autograd::AutogradContext* /*context*/,
                                                 torch::autograd::variable_list /*gradients*/) {
    throw Thrown("thrown in backward");
  }
};

at::Tensor widened(const at::Tensor& values) {
  return at::constant_pad_nd(values, {0, kWidth - values.size(1)});
}

at::Tensor use(const at::Tensor& parameter, const at::Tensor& state) {
  switch (parameter.dim()) {
    case 0:
      return at::tanh(state * parameter);
    case 1:
      return state + widened(state.narrow(1, 0, parameter.size(0)) * parameter);
    case 2:
      return state * 0.5 + widened(at::tanh(state.narrow(1, 0, parameter.size(0)).matmul(parameter)));
    default:
      return state + parameter.sin().mean();
  }
}

at::Tensor input(at::ScalarType dtype, int data, int rank) {
  return numbers({kRows, kWidth}, 100 + 10 * data + rank).to(dtype);
}

}  // namespace

at::Tensor numbers(at::IntArrayRef sizes, int64_t data) {
  at::Tensor tensor = at::empty(sizes);
  auto* values = tensor.mutable_data_ptr<float>();
  uint64_t state = static_cast<uint64_t>(data) * 0x9E3779B97F4A7C15ULL + 0x1234567;
  for (int64_t i = 0; i < tensor.numel(); ++i) {
    state = state * 6364136223846793005ULL + 1442695040888963407ULL;
    values[i] = static_cast<float>(static_cast<int64_t>(state >> 40) - (int64_t{1} << 23)) * 0x1p-23F;
  }
  return tensor;
}

Model::Model(const Program& program)
    : block(register_module("block", std::make_shared<torch::nn::Module>())) {
  for (size_t index = 0; index < program.parameters.size(); ++index) {
    const Parameter& parameter = program.parameters[index];
    std::vector<int64_t> sizes(parameter.sizes.begin(), parameter.sizes.end());
    if (parameter.layout == Layout::transposed) std::swap(sizes[0], sizes[1]);
    at::Tensor values = numbers(sizes, static_cast<int64_t>(index));
    if (parameter.layout == Layout::transposed) values = values.t();
    if (parameter.layout == Layout::with_gaps) {
      sizes[1] *= 2;
      values = numbers(sizes, static_cast<int64_t>(index)).slice(1, 0, sizes[1], 2);
    }
    if (parameter.layout == Layout::channels_last) values = values.contiguous(at::MemoryFormat::ChannelsLast);
    const std::string name = c10::str("p", index);
    all.push_back(register_parameter(name, values, /*requires_grad=*/!parameter.frozen));
    if (parameter.tied) register_parameter(name + "_again", all.back(), !parameter.frozen);
  }
}

at::Tensor loss_of(const std::vector<at::Tensor>& parameters, const std::vector<int>& uses, int data,
                   int rank) {
  at::Tensor state = input(parameters.front().scalar_type(), data, rank);
  for (int index : uses) state = use(parameters[index], state);
  return state.to(at::kFloat).square().sum();
}

at::Tensor loss_of(const Model& model, const std::vector<int>& uses, int data, int rank) {
  const std::shared_ptr<const Block> marked = find_block(*model.block);
  const bool repeats_first = std::count(uses.begin(), uses.end(), uses.front()) > 1;
  if (!marked || repeats_first) return loss_of(model.all, uses, data, rank);
  at::Tensor state = use(model.all[uses.front()], input(model.all.front().scalar_type(), data, rank));
  Tensors parameters;
  for (size_t index = 1; index < uses.size(); ++index) parameters.push_back(model.all[uses[index]]);
  const auto block = std::make_shared<const Block>(
      Block{.name = marked->name, .recomputation = marked->recomputation, .parameters = parameters});
  const auto run = [parameters](const Tensors& inputs) {
    at::Tensor inner = inputs[0];
    for (const at::Tensor& parameter : parameters) inner = use(parameter, inner);
    return Tensors{inner};
  };
  // What requires no grad yet would let the block's own parameters begin the graph, as in plain LibTorch.
  state = state.requires_grad() ? run_block(block, run, {state})[0] : run({state})[0];
  return state.to(at::kFloat).square().sum();
}

at::Tensor loss_that_fails(const std::vector<at::Tensor>& parameters, const std::vector<int>& uses, int data,
                           int rank) {
  at::Tensor state = input(parameters.front().scalar_type(), data, rank);
  bool fails = false;
  for (size_t i = 0; i < uses.size(); ++i) {
    state = use(parameters[uses[i]], state);
    if (fails || i < uses.size() / 2 || !state.requires_grad()) continue;
    state = Failing::apply(state);
    fails = true;
  }
  return state.to(at::kFloat).square().sum();
}

void fail_in_forward(const std::vector<at::Tensor>& parameters, const Operation& operation, int rank) {
  at::Tensor state = input(parameters.front().scalar_type(), operation.data, rank);
  for (int index : operation.parameters) state = use(parameters[index], state);
  const at::Tensor& last = parameters[operation.parameters.back()];
  // The shapes of this operator's inputs do not match, so it throws while it uses the parameter.
  if (operation.how % 2 == 1 && last.dim() == 2) at::mm(at::ones({1, kWidth + 1}, last.options()), last);
  throw Thrown("thrown in forward");
}

void write_by_operator(at::Tensor parameter, int data) {
  torch::NoGradGuard no_grad;
  switch (data % 6) {
    case 0:
      parameter.mul_(0.5);
      break;
    case 1:
      parameter.add_(0.25);
      break;
    case 2:
      parameter.copy_(numbers(parameter.sizes(), data));
      break;
    case 3:
      parameter.clamp_(-0.25, 0.5);
      break;
    case 4:
      if (parameter.dim() > 0 && parameter.size(0) > 0) parameter[parameter.size(0) - 1].fill_(0.3);
      break;
    default:
      parameter.detach().sub_(parameter * 0.5);
  }
}

void write_raw(const at::Tensor& parameter, int data) {
  const int64_t element = data % parameter.numel();
  const double value = 0.125 * (data % 7);
  auto* memory = static_cast<char*>(parameter.mutable_data_ptr()) +
                 element * static_cast<int64_t>(parameter.element_size());
  if (parameter.scalar_type() == at::kFloat) {
    const auto narrow = static_cast<float>(value);
    std::memcpy(memory, &narrow, sizeof narrow);
  } else if (parameter.scalar_type() == at::kHalf) {
    const at::Half narrow(static_cast<float>(value));
    std::memcpy(memory, &narrow, sizeof narrow);
  } else {
    const at::BFloat16 narrow(static_cast<float>(value));
    std::memcpy(memory, &narrow, sizeof narrow);
  }
}

void flip(const at::Tensor& parameter) {
  parameter.requires_grad_(!parameter.requires_grad());
}

double rate_of(const Operation& operation) {
  return 0x1p-6 * (operation.data % 16);
}

at::Tensor copy_raw(const at::Tensor& parameter) {
  at::Tensor copy = at::empty_strided(parameter.sizes(), parameter.strides(),
                                      at::TensorOptions().dtype(parameter.scalar_type()));
  std::memcpy(copy.mutable_data_ptr(), parameter.const_data_ptr(), parameter.nbytes());
  return copy;
}

}  // namespace zerorun::testing
