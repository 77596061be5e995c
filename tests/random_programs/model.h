// Shared by the plain run and the engine's run: the model of a program, its data, its writes, and the notes
// of both runs that are compared.
#pragma once

#include <torch/torch.h>

#include <stdexcept>
#include <string>
#include <vector>

#include "tests/random_programs/program.h"

namespace zerorun::testing {

/// Thrown by Kind::fail, failing_forward and failing_backward.
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

/// The loss of `rank`, which uses the parameters `uses` in this order.
at::Tensor loss_of(const std::vector<at::Tensor>& parameters, const std::vector<int>& uses, int data,
                   int rank);
/// The same loss, whose backward throws Thrown halfway.
at::Tensor loss_that_fails(const std::vector<at::Tensor>& parameters, const std::vector<int>& uses, int data,
                           int rank);
/// The forward of Kind::failing_forward on a rank where it fails: always throws.
void fail_in_forward(const std::vector<at::Tensor>& parameters, const Operation& operation, int rank);

/// Writes with an in-place operator; records no gradients.
void write_by_operator(at::Tensor parameter, int data);
/// Writes another value to one element, through data_ptr().
void write_raw(const at::Tensor& parameter, int data);
/// A copy made without operators on `parameter`.
at::Tensor copy_raw(const at::Tensor& parameter);

/// A value to compare. Notes are in the order in which a rank reaches them.
struct Note {
  std::string what;
  at::Tensor value;  // a tensor's value; undefined: see `text`
  std::string text;  // a part of an exception's message, or a step's numbers
};
using Journal = std::vector<Note>;

}  // namespace zerorun::testing
