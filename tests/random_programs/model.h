// What the plain run and the engine's run have in common: the model of a program, its data, its writes, and
// what is noted of either for comparison.
#pragma once

#include <torch/torch.h>

#include <stdexcept>
#include <string>
#include <vector>

#include "tests/random_programs/program.h"

namespace zerorun::testing {

/// What Kind::fail and its kin throw.
struct Thrown : std::runtime_error {
  using std::runtime_error::runtime_error;
};

/// Numbers between -1 and 1, the same on every machine.
at::Tensor numbers(at::IntArrayRef sizes, int64_t data);

/// The parameters of a program with their initial values, which are the same on every rank.
class Model : public torch::nn::Module {
 public:
  explicit Model(const Program& program);
  std::vector<at::Tensor> all;  // in the program's order
};

/// The loss of `rank`: `uses` one after the other.
at::Tensor loss_of(const std::vector<at::Tensor>& parameters, const std::vector<int>& uses, int data,
                   int rank);
/// The same, and its backward throws Thrown when it has come halfway.
at::Tensor loss_that_fails(const std::vector<at::Tensor>& parameters, const std::vector<int>& uses, int data,
                           int rank);
/// The forward of Kind::failing_forward on a rank where it fails: always throws.
void fail_in_forward(const std::vector<at::Tensor>& parameters, const Operation& operation, int rank);

/// By an operator in place; no gradients are recorded.
void write_by_operator(at::Tensor parameter, int data);
/// Through data_ptr(): another value of one element.
void write_raw(const at::Tensor& parameter, int data);
/// A copy made without operators on `parameter`.
at::Tensor copy_raw(const at::Tensor& parameter);

/// What is compared, in the order in which a rank comes by it.
struct Note {
  std::string what;
  at::Tensor value;  // a tensor's; undefined: see `text`
  std::string text;  // "threw: " and a part of the message, or a number
};
using Journal = std::vector<Note>;

}  // namespace zerorun::testing
