// Shared by the tests of partitioned parameters: configs, modules whose forward is a function, and plain
// modules to compare with.
#pragma once

#include <torch/torch.h>

#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "engine/engine.h"
#include "tests/support/expectations.h"

namespace zerorun::testing {

/// A config with SGD. With learning rate 1 an update is one subtraction, so plain LibTorch gives the same
/// bits. The persistence threshold is 0, so no parameter stays resident.
struct Partition {
  int stage = 3;
  int64_t max_live = 0;
  int64_t prefetch = 0;
  int64_t bucket_numel = 64;
  double lr = 1;
  int accumulation = 1;
};

Engine make_engine(torch::nn::Module& model, const Partition& partition,
                   std::shared_ptr<Communicator> communicator);

/// A module that a Build function fills with submodules and parameters. The Build function returns `run`, the
/// forward of one iteration.
class Built : public torch::nn::Module {
 public:
  std::function<at::Tensor(int iteration)> run;

  template <class Holder>
  Holder add(const std::string& name, Holder module) {
    return register_module(name, std::move(module));
  }
  at::Tensor add_parameter(const std::string& name, at::IntArrayRef sizes) {
    return register_parameter(name, torch::zeros(sizes));
  }
};
using Build = std::function<std::function<at::Tensor(int iteration)>(Built&)>;
/// Makes a module. Its parameters have the same values in each call.
std::shared_ptr<Built> build(const Build& how);

/// A scalar loss in which each element of the output has a different weight.
at::Tensor loss_of(const at::Tensor& output);
/// Takes the engine's SGD step on a plain module: subtracts `lr` times the gradients. Then drops the
/// gradients.
void plain_step(torch::nn::Module& model, double lr = 1);

/// CHECKs that three iterations and a following evaluation give the bits of the plain module: outputs,
/// parameters and buffers. Runs with and without prefetch, on two ranks with the same input, so that the mean
/// over ranks is exact. `same_uses`: each iteration uses the same parameters in the same order.
void check_beside_plain(const std::string& name, const Build& how, bool same_uses = true);

/// Throws unless raw access to the parameter throws, as it must while the parameter is not gathered.
void expect_released(const at::Tensor& parameter, const std::string& what);
void expect_released(const torch::nn::Module& model);

/// Actions of the program before a test begins.
enum class Before {
  nothing,
  write,      // operators on all ranks write the same values to a parameter
  exception,  // all ranks write in a scope without modifier rank; rank 0 leaves the scope by an exception
  both
};
/// Performs `before` on `parameter`. The parameter's values are the same afterwards.
void do_before(Engine& engine, at::Tensor parameter, Before before);

/// This text is part of every error about a parameter that is not gathered.
inline const std::string kNotGathered = "not gathered now";

}  // namespace zerorun::testing
