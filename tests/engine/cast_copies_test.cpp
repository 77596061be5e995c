// Tests of the copies of partitioned parameters that autocast makes: their memory, and graphs that outlive
// what the copies were made of. Their bits: recomputation_test.cpp.
#include <catch2/catch.hpp>
#include <memory>
#include <optional>
#include <string>

#include "engine/engine.h"
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
    expect(updated.find("backward needs 'embedding.weight'") == 0, updated);
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
    expect(written.find("as autocast has copied it in forward") != std::string::npos, written);
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
