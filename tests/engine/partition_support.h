// Shared by the tests of partitioned parameters: configs, modules whose forward is a function, a plain copy
// trained for comparison, and checks that rank-threads may make (CHECK is for one thread only).
#pragma once

#include <torch/torch.h>

#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "engine/engine.h"

namespace zerorun::testing {

/// SGD with learning rate 1, so that an update is one subtraction and plain LibTorch gives the same bits; no
/// parameter persists.
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

/// A module whose forward, `run`, is made by a Build function. `run` receives the iteration number.
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
/// Fills the parameters with the same values in each call.
std::shared_ptr<Built> build(const Build& how);

/// A scalar that weighs each element of the output differently.
at::Tensor loss_of(const at::Tensor& output);
/// The engine's SGD step on a plain module: subtracts the gradients and drops them.
void plain_step(torch::nn::Module& model, double lr = 1);

/// CHECKs that three iterations and an evaluation after them give the bits of the plain module: outputs,
/// parameters, buffers. Runs with and without prefetch, on two ranks with the same input, so that the mean
/// over ranks is exact. `same_uses`: each iteration uses the same parameters in the same order.
void check_beside_plain(const std::string& name, const Build& how, bool same_uses = true);

/// Throws std::runtime_error, which fails the test, unless the condition holds.
void expect(bool condition, const std::string& what);
/// Throws unless shapes, dtypes and bits are the same.
void expect_same(const at::Tensor& found, const at::Tensor& expected, const std::string& what);
/// Throws unless all parameters and buffers are the same.
void expect_same(const torch::nn::Module& found, const torch::nn::Module& expected, const std::string& what);
/// Throws unless `action` throws an exception with `part` in its message.
void expect_throws(const std::function<void()>& action, const std::string& part, const std::string& what);
/// Throws unless raw access throws, as it must while a parameter is not gathered.
void expect_released(const at::Tensor& parameter, const std::string& what);
void expect_released(const torch::nn::Module& model);

/// What the program has done before a test begins.
enum class Before {
  nothing,
  write,      // to a parameter, by operators on all ranks, with the same result
  exception,  // on rank 0 only; it leaves a scope that all ranks opened to read, and wrote in
  both
};
/// Does so with `parameter`, whose values do not change.
void do_before(Engine& engine, at::Tensor parameter, Before before);

/// A part of every message about a parameter that is not gathered.
inline const std::string kNotGathered = "not gathered now";

}  // namespace zerorun::testing
