// Tests rules for the partitioned parameters of any model: when gradients are reduced, which versions
// autograd sees, which operators gather, and errors about parameters that left their buckets. memory_test.cpp
// tests memory.
#include <torch/version.h>

#include <catch2/catch.hpp>
#include <sstream>

#include "tests/engine/net.h"
#include "tests/engine/partition_support.h"
#include "tests/support/rank_threads.h"
#include "zero/interception.h"

namespace zerorun::testing {
namespace {

using torch::nn::Linear;

const bool key_was_free = interception_key_is_free();  // evaluated before the program has any engine

Build mlp() {
  return [](Built& built) {
    auto first = built.add("first", Linear(5, 8)), last = built.add("last", Linear(8, 3));
    return [=](int i) mutable { return last(torch::tanh(first(values({4, 5}, i)))); };
  };
}

// Trains the same steps with and without an engine and expects the same bits. All ranks have the same input.
using LossIn = std::function<at::Tensor(Built&, int iteration)>;
void train_beside(std::shared_ptr<Communicator> communicator, const Build& how, const LossIn& loss,
                  bool create_graph = false) {
  auto plain = build(how), model = build(how);
  Engine engine = make_engine(*model, Partition(), communicator);
  for (int i = 0; i < 4; ++i) {
    engine.backward(loss(*model, i), /*retain_graph=*/create_graph, create_graph);
    engine.step();
    loss(*plain, i).backward({}, /*retain_graph=*/create_graph, create_graph);
    plain_step(*plain);
  }
  expect_same(*model, *plain, "after training");
}

// Recomputes the layer in backward. The layer's gradients arrive in a nested backward.
struct Recomputed : torch::autograd::Function<Recomputed> {
  static at::Tensor forward(torch::autograd::AutogradContext* context, at::Tensor x, int64_t layer) {
    context->save_for_backward({x});
    context->saved_data["layer"] = layer;
    torch::NoGradGuard no_grad;
    return reinterpret_cast<torch::nn::LinearImpl*>(layer)->forward(x);
  }
  static torch::autograd::variable_list backward(torch::autograd::AutogradContext* context,
                                                 torch::autograd::variable_list gradients) {
    at::Tensor x = context->get_saved_variables()[0].detach().requires_grad_(true);
    torch::AutoGradMode grad(true);
    auto* layer = reinterpret_cast<torch::nn::LinearImpl*>(context->saved_data["layer"].toInt());
    layer->forward(x).backward(gradients[0]);
    return {x.grad(), at::Tensor()};
  }
};

}  // namespace

TEST_CASE("A parameter that has left its bucket is named by step()") {
  const std::string how = GENERATE("set_data", "set_", "Module::to", "vector_to_parameters", "torch::load");
  const int world = GENERATE(1, 2);
  CAPTURE(how, world);
  CHECK_NOTHROW(run_ranks(world, [&](std::shared_ptr<Communicator> communicator) {
    torch::nn::Sequential model(Linear(4, 6), Linear(6, 2));
    fill(*model, 3);
    Engine engine = make_engine(*model, Partition(), communicator);
    auto weight = model->parameters()[2];
    if (how == "set_data") weight.set_data(torch::ones({2, 6}));
    if (how == "set_") {
      torch::NoGradGuard no_grad;
      weight.set_(torch::ones({2, 6}));
    }
    if (how == "Module::to") {
      model->to(torch::kDouble);
      model->to(torch::kFloat);
    }
    if (how == "vector_to_parameters") {
      torch::nn::utils::vector_to_parameters(values({44}, 4), model->parameters());
    }
    if (how == "torch::load") {
      torch::nn::Sequential saved(Linear(4, 6), Linear(6, 2));
      std::stringstream stream;
      torch::save(saved, stream);
      torch::load(model, stream);
    }
    engine.backward(model->forward(values({3, 4}, 5)).sum());
    const bool only_one = how == "set_data" || how == "set_";
    expect_throws([&] { engine.step(); },
                  only_one ? "parameter 1.weight has left its bucket" : "has left its bucket", "step()");
  }));
}

TEST_CASE("A gradient is reduced when it is complete: three uses, recomputation, late recomputation") {
  const int kind = GENERATE(0, 1, 2);
  CAPTURE(kind);
  CHECK_NOTHROW(run_ranks(2, [&](std::shared_ptr<Communicator> communicator) {
    auto how = [](Built& built) {
      built.add("first", Linear(6, 6));
      built.add("second", Linear(6, 6));
      return nullptr;
    };
    train_beside(communicator, how, [&](Built& built, int i) {
      auto layers = built.modules(/*include_self=*/false);
      auto first = std::dynamic_pointer_cast<torch::nn::LinearImpl>(layers[0]);
      auto second = std::dynamic_pointer_cast<torch::nn::LinearImpl>(layers[1]);
      auto recomputed = [&](const at::Tensor& x) {
        return Recomputed::apply(x, reinterpret_cast<int64_t>(second.get()));
      };
      at::Tensor x = torch::tanh(first->forward(values({3, 6}, i)));
      if (kind == 0) x = first->forward(torch::tanh(second->forward(first->forward(x))));
      if (kind == 1) x = second->forward(recomputed(torch::tanh(x)));
      if (kind == 2) x = i < 2 ? second->forward(x) : second->forward(recomputed(x));
      return loss_of(x);
    });
  }));
}

TEST_CASE("Hooks: double backward, create_graph, hooks of the program, sparse gradients") {
  CHECK_NOTHROW(run_ranks(2, [](std::shared_ptr<Communicator> communicator) {
    auto penalty = [](Built& built, int i) {
      at::Tensor x = values({4, 5}, i).requires_grad_(true);
      const auto parameters = built.parameters();
      const at::Tensor out = torch::linear(torch::tanh(torch::linear(x, parameters[0], parameters[1])),
                                           parameters[2], parameters[3]);
      const at::Tensor slope = torch::autograd::grad({out.sum()}, {x}, {}, true, true)[0];
      return (slope.norm() - 1).square() + loss_of(out);
    };
    train_beside(communicator, mlp(), penalty);
    train_beside(
        communicator, mlp(), [](Built& built, int i) { return loss_of(built.run(i)); },
        /*create_graph=*/true);
    const auto sparse = [](Built& built) {
      auto module = built.add("module", torch::nn::Embedding(torch::nn::EmbeddingOptions(6, 5).sparse(true)));
      return [=](int i) mutable { return module(torch::tensor({1, 1, 4, i})); };
    };
    train_beside(communicator, sparse, [](Built& built, int i) { return loss_of(built.run(i)); });

    struct Count : torch::autograd::PostAccumulateGradHook {
      explicit Count(int& calls) : calls(&calls) {}
      void operator()(const at::Tensor& tensor) override { *calls += tensor.grad().defined(); }
      int* calls;
    };
    auto model = build(mlp());
    int calls = 0;
    torch::autograd::impl::set_post_acc_grad_hooks(model->parameters()[2], std::make_unique<Count>(calls));
    Engine engine = make_engine(*model, Partition(), communicator);
    for (int i = 0; i < 3; ++i) {
      engine.backward(loss_of(model->run(i)));
      engine.step();
    }
    expect(calls == 3, "the program's hook was called " + std::to_string(calls) + " times");
  }));
}

TEST_CASE("Only step() changes the version counters of parameters") {
  const int world = GENERATE(1, 2);
  CHECK_NOTHROW(run_ranks(world, [](std::shared_ptr<Communicator> communicator) {
    auto model = build(mlp());
    Engine engine = make_engine(*model, Partition(), communicator);
    auto versions = [&] {
      std::vector<uint32_t> result;
      for (const auto& parameter : model->parameters()) result.push_back(parameter._version());
      return result;
    };
    const auto before = versions();
    for (const auto& parameter : model->parameters()) parameter.sum();  // releases all others
    at::Tensor loss = loss_of(model->run(0));
    engine.backward(loss, /*retain_graph=*/true);
    engine.backward(loss, /*retain_graph=*/true);  // the weights have been released since the forward
    engine.eval();
    engine.train();
    expect(versions() == before, "a gather or a release has changed a version");
    engine.step();
    expect(versions() != before, "a step has not");
    expect_throws([&] { engine.backward(loss); }, "modified by an inplace operation",
                  "backward over old weights");
  }));
}

TEST_CASE("Views and operators on sizes alone gather nothing") {
  using Look = std::function<std::vector<at::Tensor>(const at::Tensor&)>;
  const at::Tensor like = torch::zeros({6, 4});
  const std::vector<std::pair<std::string, Look>> views = {
      {"t",
       [](auto& w) {
         return std::vector{w.t(), w.numpy_T(), w.mT(), w.adjoint()};
       }},
      {"transpose",
       [](auto& w) {
         return std::vector{w.transpose(0, 1), w.swapaxes(0, 1), w.swapdims(0, 1)};
       }},
      {"view",
       [&](auto& w) {
         return std::vector{w.view({-1}), w.view({2, 12}), w.view_as(like)};
       }},
      {"view as another type", [](auto& w) { return std::vector{w.detach().view(at::kInt)}; }},
      {"reshape",
       [&](auto& w) {
         return std::vector{w.reshape({3, 8}), w.reshape_as(like), w.ravel()};
       }},
      {"permute",
       [](auto& w) {
         return std::vector{w.permute({1, 0}), w.movedim(0, 1), w.moveaxis(0, 1)};
       }},
      {"expand",
       [](auto& w) {
         return std::vector{w.expand({3, 4, 6}), w[0].expand({5, 6}), w.broadcast_to({2, 4, 6})};
       }},
      {"narrow",
       [](auto& w) {
         return std::vector{w.narrow(1, 2, 3), w.slice(0, 1, 3), w.slice(1, 0, 6, 2)};
       }},
      {"select",
       [](auto& w) {
         return std::vector{w.select(0, 1), w[2], w.index({1, torch::indexing::Slice(2)})};
       }},
      {"split", [](auto& w) { return w.split(2); }},
      {"split_with_sizes",
       [](auto& w) {
         return w.split_with_sizes({1, 3});
       }},
      {"tensor_split", [](auto& w) { return w.tensor_split(3); }},
      {"hsplit", [](auto& w) { return w.hsplit(2); }},
      {"vsplit", [](auto& w) { return w.vsplit(2); }},
      {"chunk", [](auto& w) { return w.chunk(3, 1); }},
      {"unbind", [](auto& w) { return w.unbind(); }},
      {"squeeze",
       [](auto& w) {
         return std::vector{w.unsqueeze(0), w.unsqueeze(1).squeeze(1), w.squeeze()};
       }},
      {"detach",
       [](auto& w) {
         return std::vector{w.detach(), w.data(), w.variable_data(), at::alias(w)};
       }},
      {"as_strided",
       [](auto& w) {
         return std::vector{w.as_strided({3, 2}, {1, 6}, 4)};
       }},
      {"unfold", [](auto& w) { return std::vector{w.unfold(1, 3, 1)}; }},
      {"diagonal",
       [](auto& w) {
         return std::vector{w.diagonal(), w.diagonal(1)};
       }},
      {"flatten",
       [](auto& w) {
         return std::vector{w.flatten(), w.unflatten(1, {2, 3})};
       }},
      {"nothing to convert",
       [&](auto& w) {
         return std::vector{w.to(at::kFloat), w.cpu(), w.contiguous(), w.type_as(like)};
       }},
      {"real values",
       [](auto& w) {
         return std::vector{w.conj(), at::real(w), w.resolve_conj(), w.resolve_neg()};
       }},
  };
  const std::vector<std::pair<std::string, Look>> others = {
      {"like",
       [](auto& w) {
         return std::vector{at::empty_like(w), at::zeros_like(w), at::ones_like(w), at::full_like(w, 2),
                            at::randn_like(w)};
       }},
      {"new",
       [](auto& w) {
         return std::vector{w.new_zeros({3}), w.new_empty({3}), w.new_ones({3}), w.new_full({3}, 2),
                            w.new_empty_strided({2}, {1})};
       }},
      {"sizes",
       [&](auto& w) {
         expect(w.sizes() == at::IntArrayRef({4, 6}) && w.numel() == 24 && w.stride(0) == 6 &&
                    w.size(-1) == 6 && !at::is_same_size(w, like) && w.is_contiguous() &&
                    at::result_type(w, like) == at::kFloat,
                "sizes");
         return std::vector<at::Tensor>();
       }},
  };
  CHECK_NOTHROW(run_ranks(2, [&](std::shared_ptr<Communicator> communicator) {
    auto model = build([](Built& built) {
      built.add_parameter("w", {4, 6});
      built.add_parameter("other", {16});
      return nullptr;
    });
    const at::Tensor w = model->parameters()[0], known = w.detach().clone();
    Engine engine = make_engine(*model, Partition{.bucket_numel = 16}, communicator);
    for (bool grad : {true, false}) {
      torch::AutoGradMode mode(grad);
      auto look = [&](const std::string& what, const Look& how) {
        const int64_t gathers = engine.residency().gathers;
        auto found = how(w);
        expect(engine.residency().gathers == gathers, what + " has gathered");
        expect_released(w, what);
        return found;
      };
      for (const auto& [what, how] : others) look(what, how);
      for (const auto& [what, how] : views) {
        const auto found = look(what, how);
        const auto expected = how(known);
        expect(found.size() == expected.size(), what);
        for (size_t index = 0; index < found.size(); ++index) {
          expect(found[index].strides() == expected[index].strides(), what + ": other strides");
          expect_same(found[index], expected[index], what);
        }
        model->parameters()[1].sum();  // releases `w`
      }
    }
    const int64_t gathers = engine.residency().gathers;
    expect_same(w.t().reshape({3, 8}), known.t().reshape({3, 8}), "a reshape that copies");
    expect(engine.residency().gathers == gathers + 1, "a reshape that copies must gather");
  }));
}

TEST_CASE("The dispatch key is free in this version of LibTorch, and is taken once") {
  CHECK(key_was_free);
  install_interception();
  CHECK_FALSE(interception_key_is_free());
  CHECK_NOTHROW(install_interception());
}

}  // namespace zerorun::testing
