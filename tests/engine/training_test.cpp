// Tests the engine on small modules. Training must equal plain LibTorch on the whole batch.
#include <catch2/catch.hpp>
#include <limits>

#include "tests/engine/net.h"
#include "tests/support/rank_threads.h"

namespace zerorun::testing {

using torch::nn::Linear;

TEST_CASE("A branch that only some ranks take, in only some steps: equal to a plain run") {
  const int stage = GENERATE(0, 1, 2);
  const int accumulation = GENERATE(1, 3);
  CAPTURE(stage, accumulation);
  auto loss_of = [](Net& model, int step, int micro, int rank) {
    const bool with_branch = step != 0 && (step + micro + rank) % 2 == 0 && step != 3;
    return model->forward(sample(step, micro, rank), with_branch).square().sum();
  };
  const auto expected = plain_sgd(3, accumulation, 6, loss_of);
  run_ranks(3, [&](std::shared_ptr<Communicator> communicator) {
    Net model;
    Engine engine = make_engine(*model, sgd_config(stage, accumulation), communicator);
    for (int step = 0; step < 6; ++step) {
      for (int micro = 0; micro < accumulation; ++micro) {
        engine.backward(loss_of(model, step, micro, communicator->rank()));
        engine.step();
      }
    }
    check_close(*model, expected);
  });
}

TEST_CASE("Several backwards before a step add up, also at the boundary") {
  const int stage = GENERATE(0, 1, 2);
  const int accumulation = GENERATE(1, 2);
  CAPTURE(stage, accumulation);
  auto first_loss = [](Net& model, int step, int micro, int rank) {
    return model->forward(sample(step, micro, rank), false).square().sum();
  };
  auto second_loss = [](Net& model, int step, int micro, int rank) {
    return model->forward(sample(step, micro + 5, rank), true).abs().sum();
  };
  const auto expected = plain_sgd(2, accumulation, 4, [&](Net& model, int step, int micro, int rank) {
    return first_loss(model, step, micro, rank) + second_loss(model, step, micro, rank);
  });
  run_ranks(2, [&](std::shared_ptr<Communicator> communicator) {
    Net model;
    Engine engine = make_engine(*model, sgd_config(stage, accumulation), communicator);
    for (int step = 0; step < 4; ++step) {
      for (int micro = 0; micro < accumulation; ++micro) {
        engine.backward(first_loss(model, step, micro, communicator->rank()));
        engine.backward(second_loss(model, step, micro, communicator->rank()));
        engine.step();
      }
    }
    check_close(*model, expected);
  });
}

namespace {

// Recomputes its forward inside backward in a nested backward, as activation checkpointing does. The hooks of
// the layer's parameters run in the nested graph task.
struct Recomputed : torch::autograd::Function<Recomputed> {
  static at::Tensor forward(torch::autograd::AutogradContext* context, at::Tensor x, int64_t layer_address) {
    context->save_for_backward({x});
    context->saved_data["layer"] = layer_address;
    torch::NoGradGuard no_grad;
    return layer(layer_address)->forward(x);
  }
  static torch::autograd::variable_list backward(torch::autograd::AutogradContext* context,
                                                 torch::autograd::variable_list gradients) {
    at::Tensor x = context->get_saved_variables()[0].detach().requires_grad_(true);
    torch::AutoGradMode grad(true);
    at::Tensor output = layer(context->saved_data["layer"].toInt())->forward(x);
    output.backward(gradients[0]);
    return {x.grad(), at::Tensor()};
  }
  static torch::nn::LinearImpl* layer(int64_t address) {
    return reinterpret_cast<torch::nn::LinearImpl*>(address);
  }
};

at::Tensor recomputed(const Linear& layer, const at::Tensor& x) {
  return Recomputed::apply(x, reinterpret_cast<int64_t>(layer.get()));
}

}  // namespace

TEST_CASE("A parameter used plainly and recomputed in backward is reduced once and whole") {
  const int stage = GENERATE(0, 1, 2);
  CAPTURE(stage);
  const int accumulation = GENERATE(1, 2);
  CAPTURE(accumulation);
  // The recomputation starts in step 2 on rank 0 and in step 3 on rank 1. By then the engine expects one
  // gradient per parameter.
  auto loss_of = [](Net& model, int step, int micro, int rank) {
    at::Tensor hidden = torch::tanh(model->first(sample(step, micro, rank)));
    if (step >= 2 + rank)
      hidden = torch::tanh(recomputed(model->branch, hidden)) + recomputed(model->branch, hidden);
    return model->last(torch::tanh(model->branch(hidden))).square().sum();
  };
  const auto expected = plain_sgd(2, accumulation, 5, loss_of);
  run_ranks(2, [&](std::shared_ptr<Communicator> communicator) {
    Net model;
    Engine engine = make_engine(*model, sgd_config(stage, accumulation), communicator);
    for (int step = 0; step < 5; ++step) {
      for (int micro = 0; micro < accumulation; ++micro) {
        engine.backward(loss_of(model, step, micro, communicator->rank()));
        engine.step();
      }
    }
    check_close(*model, expected);
  });
}

TEST_CASE("Tied weights are one parameter") {
  struct Tied : torch::nn::Module {
    Tied() {
      weight = register_parameter("weight", values({4, 4}, 1));
      register_parameter("again", weight);
    }
    at::Tensor weight;
  };
  run_ranks(2, [&](std::shared_ptr<Communicator> communicator) {
    Tied model;
    Engine engine = make_engine(model, sgd_config(2), communicator);
    engine.backward((model.weight.matmul(model.weight)).sum());
    engine.step();
    at::Tensor expected = values({4, 4}, 1).requires_grad_(true);
    expected.matmul(expected).sum().backward();
    if (!torch::allclose(model.weight, expected.detach() - 0.1 * expected.grad()))
      throw std::runtime_error("differs");
    if (engine.bytes_by_category().parameters != 16 * 4 * 2) throw std::runtime_error("counted twice");
  });
}

TEST_CASE("Parameters stay the same leaves, and all ranks get rank 0's parameters and buffers") {
  run_ranks(3, [&](std::shared_ptr<Communicator> communicator) {
    Net model;
    fill(*model, 7 * (communicator->rank() + 1));
    {
      torch::NoGradGuard no_grad;
      model->counter.fill_(communicator->rank() + 5);
      model->scale.fill_(communicator->rank() + 3);
    }
    auto before = model->parameters();
    Engine engine = make_engine(*model, sgd_config(1), communicator);
    auto after = model->parameters();
    Net rank0;
    fill(*rank0, 7);
    for (size_t i = 0; i < before.size(); ++i) {
      if (!before[i].is_same(after[i])) throw std::runtime_error("another tensor");
      const bool frozen = !before[i].requires_grad();
      if (!torch::equal(after[i], frozen ? torch::full({1}, 3.0) : rank0->parameters()[i])) {
        throw std::runtime_error("not rank 0's value");
      }
    }
    if (!torch::equal(model->counter, torch::full({2}, 5.0))) throw std::runtime_error("not rank 0's buffer");
  });
}

TEST_CASE("A non-finite gradient on one rank skips the step on all, at every stage") {
  const int stage = GENERATE(0, 1, 2);
  CAPTURE(stage);
  const std::string scheduled =
      R"({"train_micro_batch_size_per_gpu": 1, "optimizer": {"type": "AdamW", "params": {"lr": 0.1}},
          "scheduler": {"type": "WarmupLR", "params": {"warmup_num_steps": 4, "warmup_type": "linear"}},
          "zero_optimization": {"stage": )" +
      std::to_string(stage) + "}}";
  run_ranks(2, [&](std::shared_ptr<Communicator> communicator) {
    Net model;
    Engine engine = make_engine(*model, scheduled, communicator);
    for (int step = 0; step < 4; ++step) {
      const bool poison = step == 2 && communicator->rank() == 1;
      const double lr = engine.get_lr()[0];
      const at::Tensor before = model->first->weight.detach().clone();
      at::Tensor loss = model->forward(sample(step, 0, communicator->rank()), true).sum();
      engine.backward(poison ? loss * std::numeric_limits<float>::infinity() : loss);
      engine.step();
      const bool same = torch::equal(model->first->weight, before);
      // In steps 0 and 1 the learning rate is 0. Step 2 is skipped, so step 3 is the first that changes
      // values.
      if (engine.was_step_applied() == (step == 2)) throw std::runtime_error("applied or skipped wrongly");
      if (step == 2 && (!same || std::isfinite(engine.get_global_grad_norm()) || engine.get_lr()[0] != lr)) {
        throw std::runtime_error("the skipped step left a trace");
      }
      if (step == 3 && same) throw std::runtime_error("training did not go on");
    }
    if (engine.skipped_steps() != 1 || engine.global_steps() != 4) throw std::runtime_error("miscounted");
  });
}

TEST_CASE("Clipping bounds the update by the norm over all ranks") {
  run_ranks(2, [&](std::shared_ptr<Communicator> communicator) {
    Net model;
    Engine engine = make_engine(*model, sgd_config(2, 1, 0.01), communicator);
    const std::vector<at::Tensor> before = copies_of(*model);
    engine.backward(model->forward(sample(0, 0, communicator->rank()), true).square().sum());
    engine.step();
    double moved = 0;
    const auto after = model->parameters();
    for (size_t i = 0; i < after.size(); ++i) moved += (after[i] - before[i]).square().sum().item<double>();
    if (engine.get_global_grad_norm() < 0.01) throw std::runtime_error("the test needs a larger gradient");
    if (std::abs(std::sqrt(moved) - 0.1 * 0.01) > 1e-6) throw std::runtime_error("moved by another length");
  });
}

TEST_CASE("Optimizers of the program give the same results as on whole parameters") {
  const int stage = GENERATE(0, 1, 2);
  const std::string kind = GENERATE("sgd", "adam", "adamw", "adagrad", "rmsprop");
  CAPTURE(stage, kind);
  auto make = [&](const std::vector<at::Tensor>& parameters) -> std::unique_ptr<torch::optim::Optimizer> {
    using namespace torch::optim;
    if (kind == "sgd") return std::make_unique<SGD>(parameters, SGDOptions(0.1).momentum(0.9).nesterov(true));
    if (kind == "adam") return std::make_unique<Adam>(parameters, AdamOptions(0.01).weight_decay(0.1));
    if (kind == "adamw") return std::make_unique<AdamW>(parameters, AdamWOptions(0.01).amsgrad(true));
    if (kind == "adagrad") {
      return std::make_unique<Adagrad>(parameters, AdagradOptions(0.01).initial_accumulator_value(0.2));
    }
    return std::make_unique<RMSprop>(parameters, RMSpropOptions(0.01).centered(true));
  };
  auto trained = [](Net& model) {
    std::vector<at::Tensor> parameters;
    for (const auto& parameter : model->parameters()) {
      if (parameter.requires_grad()) parameters.push_back(parameter);
    }
    return parameters;
  };
  Net plain;
  auto plain_optimizer = make(trained(plain));
  for (int step = 0; step < 4; ++step) {
    plain_optimizer->zero_grad();
    for (int rank = 0; rank < 2; ++rank)
      (plain->forward(sample(step, 0, rank), true).square().sum() / 2).backward();
    plain_optimizer->step();
  }
  const std::vector<at::Tensor> expected = copies_of(*plain);
  run_ranks(2, [&](std::shared_ptr<Communicator> communicator) {
    Net model;
    auto optimizer = make(trained(model));
    InitializeOptions options;
    options.optimizer = optimizer.get();
    Engine engine = make_engine(*model, no_optimizer_config(stage), communicator, options);
    for (int step = 0; step < 4; ++step) {
      optimizer->zero_grad();  // programs call this, and it must have no effect
      engine.backward(model->forward(sample(step, 0, communicator->rank()), true).square().sum());
      engine.step();
    }
    check_close(*model, expected);
  });
}

TEST_CASE("Hooks from before initialize() keep running, and stay after the engine is destroyed") {
  run_ranks(1, [&](std::shared_ptr<Communicator> communicator) {
    struct Count : torch::autograd::PostAccumulateGradHook {
      explicit Count(int& calls) : calls(&calls) {}
      void operator()(const at::Tensor&) override { ++*calls; }
      int* calls;
    };
    Net model;
    int calls = 0;
    torch::autograd::impl::set_post_acc_grad_hooks(model->first->bias, std::make_unique<Count>(calls));
    {
      Engine engine = make_engine(*model, sgd_config(2), communicator);
      engine.backward(model->forward(sample(0, 0, 0), true).sum());
      engine.step();
    }
    CHECK(calls == 1);
    model->forward(sample(0, 0, 0), true).sum().backward();
    CHECK(calls == 2);
    CHECK(model->first->weight.grad().defined());
  });
}

TEST_CASE("A second engine can take over a model, and gradients from before are dropped") {
  run_ranks(2, [&](std::shared_ptr<Communicator> communicator) {
    Net model;
    model->forward(sample(9, 9, 9), true).sum().backward();
    Engine engine = make_engine(*model, sgd_config(2), communicator);
    engine = make_engine(*model, sgd_config(1), communicator);
    engine.backward(model->forward(sample(0, 0, communicator->rank()), true).square().sum());
    engine.step();
    check_close(*model, plain_sgd(2, 1, 1, [](Net& plain, int step, int micro, int rank) {
      return plain->forward(sample(step, micro, rank), true).square().sum();
    }));
  });
}

TEST_CASE("Stage 2 never holds all whole gradients, even in the first backward") {
  run_ranks(2, [&](std::shared_ptr<Communicator> communicator) {
    torch::nn::Sequential model;
    for (int layer = 0; layer < 20; ++layer) model->push_back(Linear(32, 32));
    fill(*model, 3);
    Engine engine = make_engine(*model, sgd_config(2), communicator);
    at::Tensor x = values({4, 32}, 1).requires_grad_(true);
    int64_t held = 0;  // bytes when the input's gradient arrives, after all other gradients
    x.register_hook([&](const at::Tensor&) { held = engine.bytes_by_category().buckets; });
    engine.backward(model->forward(x).sum());
    engine.step();
    const int64_t whole = engine.bytes_by_category().parameters;
    if (held == 0 || held > whole / 3) throw std::runtime_error("holds " + std::to_string(held));
  });
}

TEST_CASE("A NaN in an early micro-step skips the whole step") {
  const int stage = GENERATE(0, 1, 2);
  CAPTURE(stage);
  run_ranks(2, [&](std::shared_ptr<Communicator> communicator) {
    Net model;
    Engine engine = make_engine(*model, sgd_config(stage, 3), communicator);
    const at::Tensor before = model->last->weight.detach().clone();
    for (int micro = 0; micro < 3; ++micro) {
      at::Tensor loss = model->forward(sample(0, micro, communicator->rank()), true).sum();
      const bool poison = micro == 0 && communicator->rank() == 0;
      engine.backward(poison ? loss * std::numeric_limits<float>::quiet_NaN() : loss);
      engine.step();
    }
    if (engine.was_step_applied() || !torch::equal(model->last->weight, before))
      throw std::runtime_error("applied");
    for (int micro = 0; micro < 3; ++micro) {
      engine.backward(model->forward(sample(1, micro, communicator->rank()), true).sum());
      engine.step();
    }
    if (!engine.was_step_applied() || !at::isfinite(model->last->weight).all().item<bool>()) {
      throw std::runtime_error("the next step inherited the NaN");
    }
  });
}

TEST_CASE("Unusual members: empty parameters, buffers of every kind; create_graph") {
  struct Odd : torch::nn::Module {
    Odd() {
      weight = register_parameter("weight", values({3, 3}, 1));
      empty = register_parameter("empty", torch::zeros({0, 4}));
      flags = register_buffer("flags", torch::zeros({3}, torch::kBool));
      counts = register_buffer("counts", torch::zeros({2, 3}, torch::kLong).t());
      nothing = register_buffer("nothing", torch::zeros({0}));
    }
    at::Tensor weight, empty, flags, counts, nothing;
  };
  run_ranks(2, [&](std::shared_ptr<Communicator> communicator) {
    Odd model;
    model.flags.fill_(communicator->rank() == 0);
    model.counts.fill_(communicator->rank() + 40);
    Engine engine = make_engine(model, sgd_config(2), communicator);
    if (!model.flags.all().item<bool>() || !(model.counts == 40).all().item<bool>())
      throw std::runtime_error("buffers");
    engine.backward(model.weight.square().sum() + model.empty.sum(), /*retain_graph=*/true,
                    /*create_graph=*/true);
    engine.step();
    if (!torch::allclose(model.weight, values({3, 3}, 1) * 0.8)) throw std::runtime_error("weight");
  });
}

TEST_CASE("Sparse gradients are densified") {
  run_ranks(2, [&](std::shared_ptr<Communicator> communicator) {
    torch::nn::Embedding model(torch::nn::EmbeddingOptions(6, 3).sparse(true));
    fill(*model, 5);
    at::Tensor before = model->weight.detach().clone();
    Engine engine = make_engine(*model, sgd_config(2), communicator);
    engine.backward(model->forward(torch::tensor({1, 1, 4})).sum());
    engine.step();
    at::Tensor expected = before.clone();
    expected[1] -= 0.2;
    expected[4] -= 0.1;
    if (!torch::allclose(model->weight, expected)) throw std::runtime_error("differs");
  });
}

TEST_CASE("Channels-last parameters keep their strides, and train as in plain LibTorch") {
  run_ranks(2, [&](std::shared_ptr<Communicator> communicator) {
    torch::nn::Conv2d model(torch::nn::Conv2dOptions(3, 4, 3));
    fill(*model, 9);
    model->weight.set_data(model->weight.detach().contiguous(at::MemoryFormat::ChannelsLast));
    const auto strides = model->weight.strides().vec();
    torch::nn::Conv2d plain(torch::nn::Conv2dOptions(3, 4, 3));
    fill(*plain, 9);
    at::Tensor x = values({2, 3, 6, 6}, 11);
    plain->forward(x).square().sum().backward();
    Engine engine = make_engine(*model, sgd_config(1), communicator);
    engine.backward(model->forward(x).square().sum());
    engine.step();
    if (model->weight.strides().vec() != strides) throw std::runtime_error("strides changed");
    if (!torch::allclose(model->weight, plain->weight.detach() - 0.1 * plain->weight.grad(), 1e-4, 1e-5)) {
      throw std::runtime_error("differs");
    }
  });
}

}  // namespace zerorun::testing
