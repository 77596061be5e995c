// Tests of counted floating-point operations against closed formulas.
#include "engine/flops_profiler.h"

#include <catch2/catch.hpp>
#include <memory>
#include <optional>
#include <string>

#include "engine/flops_modules.h"
#include "samples/gpt2/model.h"
#include "tests/engine/net.h"
#include "tests/support/expectations.h"
#include "tests/support/rank_threads.h"
#include "tests/support/stderr_capture.h"
#include "tests/support/temporary_folder.h"

namespace zerorun::testing {
namespace {

using Catch::Contains;

void expect_equal(int64_t found, int64_t expected, const std::string& what) {
  expect(found == expected, what + ": " + std::to_string(found) + ", expected " + std::to_string(expected));
}

// Of the products with weights in a forward of B sequences of T tokens, without the head's.
int64_t block_products(const samples::Gpt2Options& model, int64_t tokens) {
  return 2 * tokens * model.layers * 12 * model.hidden * model.hidden;
}
int64_t head_product(const samples::Gpt2Options& model, int64_t tokens) {
  return 2 * tokens * model.vocab * model.hidden;
}
int64_t attention(const samples::Gpt2Options& model, int64_t batch, int64_t length) {
  return 4 * batch * model.layers * length * length * model.hidden;
}

// The formulas of each module: products with its weights; attention belongs to the module around them.
void check_modules(const FlopTotals& totals, const samples::Gpt2Options& model, int64_t batch, int64_t length,
                   bool recomputes) {
  const int64_t square = 2 * batch * length * model.hidden * model.hidden;
  const int64_t scores = attention(model, batch, length) / model.layers;
  const auto forward_of = [&](const std::string& path) -> std::optional<int64_t> {
    if (path.ends_with("attn.c_attn")) return 3 * square;
    if (path.ends_with("attn.c_proj")) return square;
    if (path.ends_with("mlp.c_fc") || path.ends_with("mlp.c_proj")) return 4 * square;
    if (path.ends_with(".attn")) return scores;
    if (path.find(".h.") != std::string::npos) return 0;
    return {};  // the head's product has the embedding's weight
  };
  FlopsByPhase others{};
  for (const ModuleFlops& module : totals.modules) {
    const std::optional<int64_t> forward = forward_of(module.path);
    if (!forward) {
      for (size_t phase = 0; phase < others.size(); ++phase) others[phase] += module.flops[phase];
      continue;
    }
    const bool is_attention = module.path.ends_with(".attn");
    expect_equal(module.flops[0], *forward, "forward of " + module.path);
    expect_equal(module.flops[1], is_attention ? *forward * 5 / 2 : 2 * *forward,
                 "backward of " + module.path);
    expect_equal(module.flops[2], recomputes ? *forward : 0, "recomputed of " + module.path);
  }
  const int64_t head = head_product(model, batch * length);
  expect(others == FlopsByPhase{head, 2 * head, 0}, "the head");
}

}  // namespace

TEST_CASE("A stack of linear layers has exactly the operations of its formula, at each stage") {
  for (const int stage : {0, 2, 3}) {
    run_ranks(2, [&](std::shared_ptr<Communicator> communicator) {
      Net net;
      Engine engine = make_engine(*net, sgd_config(stage), communicator);
      const at::Tensor x = values({6, 5}, 3);
      const FlopCounter counter;
      engine.backward(net(x, true).square().mean());
      // 5 -> 7 -> 7 -> 3; the first layer's input needs no gradient.
      const int64_t forward = 2 * 6 * (5 * 7 + 7 * 7 + 7 * 3);
      expect_equal(counter.totals().of(FlopPhase::forward), forward, "forward");
      expect_equal(counter.totals().of(FlopPhase::backward), 2 * forward - 2 * 6 * 5 * 7, "backward");
      expect_equal(counter.totals().of(FlopPhase::recomputed), 0, "recomputed");
      engine.step();
    });
  }
}

TEST_CASE("GPT-2 has exactly the operations of its formula, with recomputed blocks too, and under autocast") {
  for (const std::string more :
       {"", R"(, "zerorun": {"recompute": {"every": 1}})", R"(, "torch_autocast": {"enabled": true})"}) {
    run_ranks(1, [&](std::shared_ptr<Communicator> communicator) {
      const samples::Gpt2Options options{.layers = 2, .hidden = 32, .heads = 4, .vocab = 64, .positions = 16};
      samples::Gpt2 model(options);
      const std::string config = sgd_config(2);
      Engine engine = make_engine(*model, config.substr(0, config.size() - 1) + more + "}", communicator);
      constexpr int64_t kBatch = 3, kLength = 16;
      const at::Tensor tokens = at::arange(kBatch * kLength).view({kBatch, kLength}) % options.vocab;
      const FlopCounter counter(false, std::make_unique<FlopsModules>(model_of(*model).parameters));
      {
        at::Tensor loss;
        {
          const AutocastScope autocast = engine.autocast();
          loss = model->loss(tokens);
        }
        engine.backward(loss);
      }
      const FlopTotals totals = counter.totals();
      const int64_t of_blocks = block_products(options, kBatch * kLength);
      const int64_t head = head_product(options, kBatch * kLength);
      const int64_t scores = attention(options, kBatch, kLength);
      expect_equal(totals.of(FlopPhase::forward), of_blocks + head + scores, "forward " + more);
      expect_equal(totals.of(FlopPhase::backward), 2 * (of_blocks + head) + scores * 5 / 2,
                   "backward " + more);
      const bool recomputes = more.find("recompute") != std::string::npos;
      expect_equal(totals.of(FlopPhase::recomputed), recomputes ? of_blocks + scores : 0,
                   "recomputed " + more);
      expect_equal(totals.executed() - totals.model(), totals.of(FlopPhase::recomputed), "executed " + more);
      check_modules(totals, options, kBatch, kLength, recomputes);
      engine.step();
    });
  }
}

TEST_CASE("Convolutions have the operations of their formula, strided, grouped and transposed") {
  const at::Tensor x = values({2, 4, 9, 9}, 1).requires_grad_();
  const at::Tensor weight = values({6, 2, 3, 3}, 2).requires_grad_();
  FlopCounter counter;
  const at::Tensor y = at::conv2d(x, weight, {}, /*stride=*/2, /*padding=*/1, /*dilation=*/1, /*groups=*/2);
  REQUIRE(y.sizes() == at::IntArrayRef({2, 6, 5, 5}));
  const int64_t forward = 2 * (2 * 6 * 5 * 5) * (2 * 3 * 3);
  CHECK(counter.totals().of(FlopPhase::forward) == forward);
  y.sum().backward();
  CHECK(counter.totals().of(FlopPhase::backward) == 2 * forward);
  const at::Tensor z = at::conv_transpose2d(y.detach(), values({6, 2, 3, 3}, 3), {}, 2, 1);
  CHECK(counter.totals().of(FlopPhase::forward) == forward + 2 * (2 * 6 * 5 * 5) * (2 * 3 * 3));
}

TEST_CASE("An operator that cannot be counted leaves the count of others as it is") {
  const auto product = [] {
    const FlopCounter counter;
    at::mm(at::ones({2, 3}), at::ones({3, 4}));
    return counter.totals().of(FlopPhase::forward);
  };
  const int64_t expected = product();
  {
    const FlopCounter counter;
    const at::Tensor nested = at::_nested_tensor_from_tensor_list({at::ones({2, 3}), at::ones({2, 3})});
    try {
      at::bmm(nested, nested.transpose(1, 2).contiguous());
    } catch (const c10::Error&) {  // it has no sizes
    }
  }
  CHECK(expected == 2 * 2 * 3 * 4);
  CHECK(product() == expected);
}

TEST_CASE("The profiler reports the one step that the config names, on rank 0") {
  const TemporaryFolder folder;
  const auto log_of = [&](const std::string& keys) {
    StderrCapture capture;
    run_ranks(2, [&](std::shared_ptr<Communicator> communicator) {
      const std::string config = sgd_config(2, 2);
      Net net;
      Engine engine = make_engine(
          *net, config.substr(0, config.size() - 1) + R"(, "flops_profiler": {"enabled": true)" + keys + "}}",
          communicator);
      for (int micro = 0; micro < 6; ++micro) {
        engine.backward(net(values({6, 5}, 3), true).square().mean());
        engine.step();
      }
    });
    return capture.text();
  };
  const std::string log = log_of("");
  CHECK_THAT(log, Contains("floating-point operations of step 2 on rank 0: model 0.000007 GFLOP") &&
                      Contains("aten::addmm") && Contains("executed 0.000007 GFLOP"));
  CHECK(log.find("floating-point") == log.rfind("floating-point"));
  CHECK_THAT(log_of(R"(, "profile_step": 0, "detailed": false)"),
             Contains("of step 1 on") && !Contains("aten::") && !Contains("module"));
  CHECK_THAT(log, Contains("\nmodule ") && Contains("\n(the model) ") &&
                      Contains("\nmost model GFLOP at depth 1: "));
  const std::string file = (folder / "flops").string();
  CHECK_THAT(log_of(R"(, "output_file": ")" + file + '"'), !Contains("floating-point"));
  CHECK_THAT(read_file(file), Contains("of step 2 on rank 0") && Contains("aten::mm"));
}

}  // namespace zerorun::testing
