// Shared by the plain run and the engine's run of a program: the model, its data, the writes to its
// parameters, and the notes that the two runs compare.
#pragma once

#include <torch/torch.h>

#include <memory>
#include <stdexcept>
#include <string>
#include <vector>

#include "tests/random_programs/program.h"

namespace zerorun::testing {

/// Thrown by Kind::fail, failing_forward and failing_backward.
struct Thrown : std::runtime_error {
  using std::runtime_error::runtime_error;
};

/// Numbers between -1 and 1, determined by `data`. They are the same on every machine.
at::Tensor numbers(at::IntArrayRef sizes, int64_t data);

/// The parameters of a program with their initial values, which are the same on every rank.
class Model : public torch::nn::Module {
 public:
  explicit Model(const Program& program);
  std::vector<at::Tensor> all;               // in the program's order
  std::shared_ptr<torch::nn::Module> block;  // marks a block for recomputation; has no parameters
};

/// The loss of `rank` for the input number `data`. It uses the parameters `uses` in this order.
at::Tensor loss_of(const std::vector<at::Tensor>& parameters, const std::vector<int>& uses, int data,
                   int rank);
/// The same loss, of which an engine may recompute all uses but the first.
at::Tensor loss_of(const Model& model, const std::vector<int>& uses, int data, int rank);
/// The same loss, but its backward throws Thrown after about half of the uses.
at::Tensor loss_that_fails(const std::vector<at::Tensor>& parameters, const std::vector<int>& uses, int data,
                           int rank);
/// The forward of Kind::failing_forward on a rank where it fails. It always throws.
void fail_in_forward(const std::vector<at::Tensor>& parameters, const Operation& operation, int rank);

/// Writes with an in-place operator under NoGradGuard. `data` selects the operator.
void write_by_operator(at::Tensor parameter, int data);
/// Writes a value to one element through mutable_data_ptr(). `data` determines the element and the value.
void write_raw(const at::Tensor& parameter, int data);
/// Freezes or unfreezes.
void flip(const at::Tensor& parameter);
/// The rate, decay or other number that Kind::group sets.
double rate_of(const Operation& operation);
/// Copies the parameter's memory without an operator on it.
at::Tensor copy_raw(const at::Tensor& parameter);

/// A result of one rank that must be the same in both runs. A Journal has a rank's notes in the order of
/// execution.
struct Note {
  std::string what;
  at::Tensor value;  // undefined: the note is `text`
  std::string text;  // part of an exception's message, or the numbers that a step reports
};
using Journal = std::vector<Note>;

}  // namespace zerorun::testing
