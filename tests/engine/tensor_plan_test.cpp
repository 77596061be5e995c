// What a tensor plan says of parts, and the checks against plans that are wrong in silence.
#include <algorithm>
#include <catch2/catch.hpp>
#include <memory>
#include <string>

#include "engine/tensor_parallel.h"
#include "tensor_parallel/plan.h"
#include "tests/engine/tensor_support.h"
#include "tests/support/expectations.h"
#include "tests/support/rank_threads.h"

namespace zerorun::testing {
namespace {

using Catch::Contains;

}  // namespace

TEST_CASE("Units stay together, blocks are split each, and parts may be uneven") {
  const int64_t sizes[] = {24, 5};
  const TensorPlanEntry entry{"x", TensorStyle::colwise, {.unit = 2, .blocks = 2}};
  const Split split = share_of(entry, "x", sizes, 4).split;
  auto text = [&](int rank) {
    std::string all;
    for (const Range& range : split.parts[static_cast<size_t>(rank)])
      all += std::to_string(range.begin) + "+" + std::to_string(range.numel) + " ";
    return all;
  };
  CHECK(text(0) == "0+2 12+2 ");  // units of 2: 6 in each block of 12, among 4 ranks
  CHECK(text(1) == "2+4 14+4 ");
  CHECK(text(2) == "6+2 18+2 ");
  CHECK(text(3) == "8+4 20+4 ");
  CHECK(split.largest_part() == 8);
}

TEST_CASE("The first step finds a plan or samples that are wrong in silence") {
  DecoderOptions qwen{.gated = true, .head_norms = true, .tied = true};
  auto error_at_first_step = [&](const DecoderOptions& options, const TensorPlan& plan, bool same_samples) {
    std::string error = "nothing thrown";
    run_ranks(2, [&](std::shared_ptr<Communicator> communicator) {
      const int rank = communicator->rank();
      Decoder model(options);
      Engine engine =
          decoder_engine(*model, decoder_config(1, kSgd), kTwoTensorRanks, std::move(communicator), plan);
      try {
        engine.backward(model->loss(tokens_of(options, 0, 0, same_samples ? 0 : rank)));
        engine.step();
      } catch (const std::exception& thrown) {
        if (rank == 0) error = thrown.what();
      }
    });
    return error;
  };
  CHECK(error_at_first_step(qwen, plan_of(qwen), true) == "nothing thrown");
  CHECK_THAT(error_at_first_step(qwen, plan_of(qwen), false),
             Contains("tensor ranks were given different samples"));
  TensorPlan unsummed = plan_of(qwen);
  std::erase_if(unsummed, [](const TensorPlanEntry& entry) {
    return entry.style == TensorStyle::replicated_with_grad_allreduce;
  });
  CHECK_THAT(error_at_first_step(qwen, unsummed, true),
             Contains("_norm.weight") && Contains("give it the word replicated_with_grad_allreduce"));
}

TEST_CASE("verify_plan() finds a module that normalises over what is split") {
  struct NormedImpl : torch::nn::Module {
    explicit NormedImpl(bool normalises) : normalises(normalises) {
      up = register_parameter("up", values({8, 4}, 1));
      down = register_parameter("down", values({4, 8}, 2));
    }
    at::Tensor loss() {
      at::Tensor middle = at::linear(values({3, 4}, 3), up);
      if (normalises) middle = middle / middle.square().mean(-1, true).sqrt();
      return at::linear(middle, down).square().sum();
    }
    bool normalises;
    at::Tensor up, down;
  };
  const TensorPlan plan = {{"up", TensorStyle::colwise}, {"down", TensorStyle::rowwise}};
  const int stage = GENERATE(0, 3);
  CHECK_NOTHROW(run_ranks(4, [&](std::shared_ptr<Communicator> communicator) {
    const MeshSizes mesh{.data = 2, .tensor = 2, .pipeline = 1};
    for (const bool normalises : {false, true}) {
      auto model = std::make_shared<NormedImpl>(normalises), whole = std::make_shared<NormedImpl>(normalises);
      Engine engine = decoder_engine(*model, decoder_config(stage, kSgd), mesh, communicator, plan);
      auto verify = [&] {
        verify_plan(
            engine, model_of(*whole), [&] { return whole->loss(); }, [&] { return model->loss(); });
      };
      if (normalises) {
        expect_throws(verify, "the gradient of up", "verify_plan()");
      } else {
        verify();
        engine.backward(model->loss());
        engine.step();
        verify();
      }
    }
  }));
}

}  // namespace zerorun::testing
