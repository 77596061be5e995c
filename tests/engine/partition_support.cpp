#include "tests/engine/partition_support.h"

#include <catch2/catch.hpp>
#include <cstring>
#include <stdexcept>

#include "engine/gathered_parameters.h"
#include "tests/engine/net.h"
#include "tests/support/rank_threads.h"

namespace zerorun::testing {

Engine make_engine(torch::nn::Module& model, const Partition& partition,
                   std::shared_ptr<Communicator> communicator) {
  const std::string zero =
      partition.stage < 3 ? ""
                          : R"(, "stage3_param_persistence_threshold": 0, "stage3_max_live_parameters": )" +
                                std::to_string(partition.max_live) + R"(, "stage3_prefetch_bucket_size": )" +
                                std::to_string(partition.prefetch);
  const std::string config = R"({"train_micro_batch_size_per_gpu": 1, "gradient_accumulation_steps": )" +
                             std::to_string(partition.accumulation) +
                             R"(, "gradient_clipping": 0, "optimizer": {"type": "SGD", "params": {"lr": )" +
                             std::to_string(partition.lr) +
                             R"(}}, "zero_optimization": {"overlap_comm": true, "stage": )" +
                             std::to_string(partition.stage) + zero + "}}";
  InitializeOptions options;
  options.bucket_numel = partition.bucket_numel;
  return make_engine(model, config, std::move(communicator), options);
}

std::shared_ptr<Built> build(const Build& how) {
  auto model = std::make_shared<Built>();
  model->run = how(*model);
  fill(*model, 500);
  return model;
}

at::Tensor loss_of(const at::Tensor& output) {
  return (output * values(output.sizes(), 77)).sum() + output.square().mean();
}

void plain_step(torch::nn::Module& model, double lr) {
  torch::NoGradGuard no_grad;
  for (at::Tensor& parameter : model.parameters()) {
    if (!parameter.grad().defined()) continue;
    const at::Tensor gradient = parameter.grad().is_sparse() ? parameter.grad().to_dense() : parameter.grad();
    parameter.sub_(gradient * lr);
    parameter.mutable_grad().reset();
  }
}

void do_before(Engine& engine, at::Tensor parameter, Before before) {
  torch::NoGradGuard no_grad;
  if (before == Before::exception || before == Before::both) {
    try {
      GatheredParameters scope(engine, {parameter});
      parameter.mul_(1);
      if (engine.communicator().rank() == 0) throw std::range_error("on rank 0");
    } catch (const std::range_error&) {
    }
  }
  if (before == Before::write || before == Before::both) parameter.mul_(1);
}

void expect_released(const at::Tensor& parameter, const std::string& what) {
  expect_throws([&] { parameter.mutable_data_ptr(); }, kNotGathered, what);
}

void expect_released(const torch::nn::Module& model) {
  for (const auto& item : model.named_parameters()) {
    if (item.value().requires_grad() && item.value().numel() > 0) expect_released(item.value(), item.key());
  }
}

namespace {

void train_beside(const Build& how, const Partition& partition, std::shared_ptr<Communicator> communicator,
                  bool same_uses) {
  auto plain = build(how);
  auto model = build(how);
  Engine engine = make_engine(*model, partition, communicator);
  for (int iteration = 0; iteration < 3; ++iteration) {
    const std::string where = "iteration " + std::to_string(iteration);
    const at::Tensor expected = plain->run(iteration);
    const at::Tensor output = model->run(iteration);
    expect_same(output, expected, "output of " + where);
    expect(at::isfinite(output).all().item<bool>(), "the test needs finite outputs");
    loss_of(expected).backward();
    engine.backward(loss_of(output));
    engine.step();
    plain_step(*plain);
    expect_released(*model);
  }
  const ResidencyReport report = engine.residency();
  expect(report.gathers > 0, "nothing was gathered");
  expect(!same_uses || report.departures == 0, "an iteration did not follow the trace");

  engine.eval();
  plain->eval();
  torch::NoGradGuard no_grad;
  for (int iteration : {7, 8, 7}) {
    expect_same(model->run(iteration), plain->run(iteration), "evaluation " + std::to_string(iteration));
  }
  expect_same(*model, *plain, "after training");
}

}  // namespace

void check_beside_plain(const std::string& name, const Build& how, bool same_uses) {
  for (int64_t prefetch : {0, 1'000'000}) {
    INFO(name << ", prefetch " << prefetch);
    CHECK_NOTHROW(run_ranks(2, [&](std::shared_ptr<Communicator> communicator) {
      train_beside(how, {.prefetch = prefetch}, communicator, same_uses);
    }));
  }
}

}  // namespace zerorun::testing
