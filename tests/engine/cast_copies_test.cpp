// Tests of the copies of partitioned parameters that autocast makes: their memory, and graphs that outlive
// what the copies were made of. Their bits: recomputation_test.cpp.
#include <ATen/autocast_mode.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <c10/core/impl/LocalDispatchKeySet.h>

#include <catch2/catch.hpp>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "engine/engine.h"
#include "engine/gathered_parameters.h"
#include "tests/engine/net.h"
#include "tests/engine/recomputed_model.h"
#include "tests/support/allocated_bytes.h"
#include "tests/support/expectations.h"
#include "tests/support/rank_threads.h"
#include "tests/support/temporary_folder.h"

namespace zerorun::testing {
namespace {

constexpr int64_t kHidden = 32, kBlocks = 4;
// Of the copies that backward needs: two products in each block, and the head.
constexpr int64_t kCopied = kBlocks * 2 * kHidden * 4 * kHidden + BlockModel::kVocab * kHidden;
constexpr int64_t kBytesPerElement = 2;

struct CastTraining {
  explicit CastTraining(int stage, std::shared_ptr<Communicator> communicator)
      : model(kBlocks, kHidden), rank(communicator->rank()) {
    InitializeOptions options;
    options.bucket_numel = 4096;
    engine.emplace(make_engine(model, block_config(stage, R"(, "torch_autocast": {"enabled": true})"),
                               std::move(communicator), options));
  }
  at::Tensor forward(int step) {
    const AutocastScope autocast = engine->autocast();
    return model.loss(block_tokens(step, 0, rank));
  }

  BlockModel model;
  int rank;
  std::optional<Engine> engine;
};

// What a forward leaves in memory.
int64_t bytes_held(int stage, const std::shared_ptr<Communicator>& communicator) {
  CastTraining training(stage, communicator);
  training.engine->backward(training.forward(0));
  training.engine->step();
  const AllocatedBytes memory;
  const at::Tensor loss = training.forward(1);
  return memory.now();
}

}  // namespace

TEST_CASE("A graph keeps no copies of partitioned parameters that autocast has made") {
  run_ranks(1, [&](auto communicator) {
    const int64_t whole = bytes_held(0, communicator), partitioned = bytes_held(3, communicator);
    const int64_t wanted = kCopied * kBytesPerElement;
    expect(whole - partitioned == wanted, std::to_string(whole) + " and " + std::to_string(partitioned) +
                                              " bytes, not " + std::to_string(wanted) + " less");
  });
}

TEST_CASE("Copies of autocast have memory one at a time, are counted, and made twice") {
  run_ranks(2, [&](auto communicator) {
    CastTraining training(3, communicator);
    constexpr int64_t kMost = kHidden * 4 * kHidden * kBytesPerElement;
    constexpr int64_t kWeights = 2 * kBlocks + 1;
    for (int step = 0; step < 3; ++step) {
      const at::Tensor loss = training.forward(step);
      const ResidencyReport forward = training.engine->residency();
      expect(forward.casts == (2 * step + 1) * kWeights, std::to_string(forward.casts) + " after forward");
      expect(forward.cast_bytes == 0, "held after forward");
      const int64_t gathered = training.engine->bytes_by_category().gathered;
      expect(gathered == forward.resident_bytes, "the category without copies");
      training.engine->backward(loss);
      training.engine->step();
      const ResidencyReport after = training.engine->residency();
      expect(after.casts == 2 * (step + 1) * kWeights, std::to_string(after.casts) + " made");
      expect(after.peak_cast_bytes == kMost, std::to_string(after.peak_cast_bytes) + " at once");
    }
  });
}

TEST_CASE("Backward after an update or a write does not compute with the new parameters") {
  run_ranks(2, [&](auto communicator) {
    CastTraining training(3, communicator);
    const std::string wanted = "call backward() before step() and before writing to parameters";
    const at::Tensor kept = training.forward(0);
    training.engine->backward(training.forward(1));
    training.engine->step();
    const std::string updated = user_error([&] { kept.backward(); });
    expect(updated.find("'embedding.weight' has changed since autocast has copied it") == 0, updated);
    expect(updated.find(wanted) != std::string::npos, updated);
  });
  run_ranks(2, [&](auto communicator) {
    CastTraining training(3, communicator);
    const at::Tensor kept = training.forward(0);
    {
      const c10::NoGradGuard no_grad;
      training.model.blocks[3]->down->weight.mul_(0.5);
    }
    const std::string written = user_error([&] { kept.backward(); });
    expect(written.find("'block3.down.weight' has changed") == 0, written);
  });
}

TEST_CASE("A graph that outlives its engine cannot read the copies of autocast, and ends without harm") {
  run_ranks(1, [&](auto communicator) {
    CastTraining training(3, communicator);
    at::Tensor loss = training.forward(0);
    training.engine.reset();
    std::string text;
    try {
      loss.backward();
    } catch (const std::exception& error) {
      text = error.what();
    }
    expect(text.find("the copy of 'embedding.weight' that autocast has made") != std::string::npos, text);
    loss.reset();
  });
}

TEST_CASE("A weight that is used several times in a forward, or read in between, has the bits of stage 0") {
  run_ranks(2, [&](auto communicator) {
    std::vector<at::Tensor> losses;
    for (const int stage : {0, 3}) {
      CastTraining training(stage, communicator);
      FeedForward& block = *training.model.blocks[0];
      for (int step = 0; step < 3; ++step) {
        const at::Tensor loss = [&] {
          const AutocastScope autocast = training.engine->autocast();
          at::Tensor x = training.model.embedding(block_tokens(step, 0, training.rank));
          for (int again = 0; again < 3; ++again) x = block.forward(x);
          {
            const c10::NoGradGuard no_grad;
            block.forward(x);
          }
          return training.model.loss_of(at::linear(x, block.up->weight).slice(-1, 0, kHidden) + x,
                                        block_tokens(step, 0, training.rank));
        }();
        training.engine->backward(loss);
        training.engine->step();
        losses.push_back(loss.detach());
      }
      expect(training.engine->residency().cast_bytes == 0, "nothing is held");
    }
    for (size_t step = 0; step < 3; ++step) expect_same(losses[3 + step], losses[step], "loss");
  });
}

TEST_CASE("A forward that writes to one parameter may use others that autocast has copied before") {
  run_ranks(2, [&](auto communicator) {
    CastTraining training(3, communicator);
    const at::Tensor loss = [&] {
      const AutocastScope autocast = training.engine->autocast();
      at::Tensor loss = training.model.loss(block_tokens(0, 0, training.rank));
      const c10::NoGradGuard no_grad;
      training.model.blocks[1]->up->bias.clamp_(-0.01, 0.01);
      return loss;
    }();
    training.engine->backward(loss);
    training.engine->step();
  });
}

// A copy as autocast makes it: its own code runs without autocast.
at::Tensor copied_by_autocast(const at::Tensor& weight) {
  const c10::impl::ExcludeDispatchKeyGuard no_autocast(c10::DispatchKey::AutocastCPU);
  return weight.to(at::kBFloat16);
}

TEST_CASE("A caller may give up a copy of autocast before the operator that it is for ends") {
  run_ranks(2, [&](auto communicator) {
    CastTraining training(3, communicator);
    const AutocastScope autocast = training.engine->autocast();
    const at::Tensor& weight = training.model.blocks[0]->up->weight;
    const at::Tensor x = at::ones({kHidden, 2}, at::kBFloat16);
    const auto product = c10::Dispatcher::singleton().findSchemaOrThrow("aten::mm", "");
    at::Tensor copy = copied_by_autocast(weight);
    expect_throws(
        [&] {
          copy.data_ptr();
          at::mm(copy, x);
          copy.data_ptr();
        },
        "has memory only while an operator uses it", "a copy of autocast");
    torch::jit::Stack stack{std::move(copy), x};
    {
      const c10::impl::ExcludeDispatchKeyGuard no_autocast(c10::DispatchKey::AutocastCPU);
      product.callBoxed(&stack);
    }
    const GatheredParameters whole(*training.engine, {weight});
    expect_same(stack.at(0).toTensor(), at::mm(weight.to(at::kBFloat16), x), "product");
  });
}

TEST_CASE("Within a scope, and within the program's own autocast, copies stay") {
  run_ranks(2, [&](auto communicator) {
    CastTraining training(3, communicator);
    const AutocastScope autocast = training.engine->autocast();
    const at::Tensor& weight = training.model.blocks[0]->up->weight;
    {
      const GatheredParameters whole(*training.engine, {weight});
      const at::Tensor copy = copied_by_autocast(weight);
      at::mm(copy, at::ones({kHidden, 2}, at::kBFloat16));
      expect(copy.data_ptr() != nullptr, "memory");
    }
    at::autocast::increment_nesting();
    const at::Tensor copy = copied_by_autocast(weight);
    at::autocast::decrement_nesting();
    expect(copy.mul_(2).data_ptr() != nullptr, "memory");
    const at::Tensor wide = [&] {
      const c10::impl::ExcludeDispatchKeyGuard no_autocast(c10::DispatchKey::AutocastCPU);
      return weight.to(at::kDouble);
    }();
    expect(wide.mul_(2).data_ptr() != nullptr, "memory");
    expect(training.engine->residency().casts == 0, "no copy of autocast");
  });
}

TEST_CASE("A program's own copies stay, under autocast too") {
  run_ranks(2, [&](auto communicator) {
    CastTraining training(3, communicator);
    const at::Tensor& weight = training.model.blocks[0]->up->weight;
    const at::Tensor copy = [&] {
      const AutocastScope autocast = training.engine->autocast();
      return weight.to(at::kBFloat16);
    }();
    expect(copy.data_ptr() != nullptr, "memory");
    expect(training.engine->residency().casts == 0, "no copy of autocast");
  });
}

}  // namespace zerorun::testing
