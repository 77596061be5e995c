// Memory that runs out at many places of training: the report names the use that the memory was for. Which
// allocation fails is chosen by the phase of training and by the size, which follows from the model's shapes.
#include <c10/core/CPUAllocator.h>

#include <atomic>
#include <catch2/catch.hpp>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <new>
#include <numeric>

#include "base/memory_report.h"
#include "checkpoint/memory_snapshot.h"
#include "tests/engine/net.h"
#include "tests/support/rank_threads.h"

namespace zerorun::testing {
namespace {

using Catch::Matchers::Contains;

// Sizes in bytes of allocations that fail.
std::atomic<size_t> fails_from = 0, fails_below = 0;

bool fails(size_t bytes) {
  return bytes >= fails_from && bytes < fails_below;
}

// LibTorch's own allocator, but for the sizes that fail.
struct ScarceAllocator final : c10::Allocator {
  at::DataPtr allocate(size_t bytes) override {
    if (fails(bytes)) throw std::bad_alloc();
    return c10::GetDefaultCPUAllocator()->allocate(bytes);
  }
  void copy_data(void* to, const void* from, size_t bytes) const override { std::memcpy(to, from, bytes); }
  at::DeleterFnPtr raw_deleter() const override { return c10::GetDefaultCPUAllocator()->raw_deleter(); }
};

// From now on LibTorch has no memory for tensors of `bytes`, and of the little more that alignment adds.
void make_scarce(double bytes) {
  static ScarceAllocator allocator;
  c10::SetCPUAllocator(&allocator, 1);
  fails_from = static_cast<size_t>(bytes * 0.995);
  fails_below = static_cast<size_t>(bytes * 1.02);
}

void make_plentiful() {
  fails_below = 0;
}

// Layers of equal size, of which the limits leave room for kOfBucket in a bucket.
constexpr int64_t kWidth = 64, kLayers = 48, kRanks = 3;
constexpr double kLayer = kWidth * kWidth + kWidth;
constexpr double kOfBucket = 2;
constexpr double kBucket = kOfBucket * kLayer;  // elements
constexpr int64_t kRows = 1000;                 // of a batch: activations are larger than a bucket's values

std::string config(int stage, const std::string& more) {
  const std::string bucket = std::to_string(static_cast<int64_t>(kBucket) + 100);
  return R"({"train_micro_batch_size_per_gpu": 4, )" + more +
         R"("optimizer": {"type": "AdamW", "params": {"lr": 0.1}}, "zero_optimization": {"stage": )" +
         std::to_string(stage) + R"(, "reduce_bucket_size": )" + bucket + R"(, "allgather_bucket_size": )" +
         bucket + R"(, "stage3_param_persistence_threshold": 0}})";
}

struct Program {
  explicit Program(const std::string& text, std::shared_ptr<Communicator> communicator) {
    for (int64_t layer = 0; layer < kLayers; ++layer) model->push_back(torch::nn::Linear(kWidth, kWidth));
    fill(*model, 1);
    engine.emplace(make_engine(*model, text, std::move(communicator)));
  }
  at::Tensor forward(int64_t rows = 2) {
    const at::ScalarType dtype = model->parameters()[0].scalar_type();
    return model->forward(values({rows, kWidth}, 2).to(dtype)).sum();
  }

  torch::nn::Sequential model;
  std::optional<Engine> engine;
  at::Tensor loss;
};

struct Place {
  std::string name;
  MemoryUse use;
  double bytes;  // of the allocation that fails
  int stage;
  std::string more;  // of the config
  std::function<void(Program&)> before = [](Program&) {};
  std::function<void(Program&)> action = nullptr;  // null: initialize()
};

const std::string kBf16 = R"("bf16": {"enabled": true}, )";
const std::string kSumsInBf16 = R"("data_types": {"grad_accum_dtype": "bf16"}, )";
const std::string kSentInFp32 = R"("communication_data_type": "fp32", )";
const std::string kTwoMicroSteps = R"("gradient_accumulation_steps": 2, )";

std::vector<Place> places() {
  constexpr double kActivations = kRows * kWidth * 2;
  const auto nothing = [](Program&) {};
  const auto forward = [](Program& program) { program.loss = program.forward(kRows); };
  return {
      {"values at stage 1", MemoryUse::parameters, 2 * kBucket, 1, kBf16},
      {"slices at stage 3", MemoryUse::parameters, 2 * kBucket / kRanks, 3, kBf16},
      {"master weights", MemoryUse::master, 4 * kBucket / kRanks, 2, kBf16 + kSumsInBf16},
      {"gradients of a bucket", MemoryUse::gradients, 4 * kBucket, 1, kBf16 + kTwoMicroSteps},
      {"optimizer states", MemoryUse::moments, 4 * kBucket / kRanks, 1, ""},
      {"what is sent", MemoryUse::buckets, 4 * kBucket, 2, kBf16 + kSentInFp32},
      {"sums of a scope without reduction", MemoryUse::gradients, 4 * kBucket, 1, kBf16, nothing,
       [](Program& program) {
         const auto scope = program.engine->no_sync();
         program.engine->backward(program.forward());
       }},
      {"a gather outside of the plan", MemoryUse::gathered, 2 * kBucket, 3, kBf16, nothing,
       [](Program& program) { program.forward(); }},
      {"activations of a forward", MemoryUse::other, kActivations, 2, kBf16, nothing, forward},
      {"activations of an evaluation at stage 3", MemoryUse::other, kActivations, 3, kBf16,
       [](Program& program) {
         program.engine->backward(program.forward());
         program.engine->step();
       },
       [](Program& program) {
         const at::NoGradGuard no_grad;
         program.forward(kRows);
       }},
      {"gradients of activations", MemoryUse::other, kActivations, 1, kBf16, forward,
       [](Program& program) { program.engine->backward(program.loss); }},
  };
}

}  // namespace

TEST_CASE("Memory that runs out: the report names what it was for, and what may help") {
  for (const Place& place : places()) {
    INFO(place.name);
    std::array<std::string, kRanks> reports;
    if (!place.action) make_scarce(place.bytes);
    CHECK_NOTHROW(run_ranks(kRanks, [&](std::shared_ptr<Communicator> communicator) {
      try {
        Program program(config(place.stage, place.more), communicator);
        if (!place.action) return;
        place.before(program);
        communicator->barrier("before")->wait();
        if (communicator->rank() == 0) make_scarce(place.bytes);
        communicator->barrier("scarce")->wait();
        place.action(program);
      } catch (const std::exception& error) {
        reports[communicator->rank()] = memory_report_of(error.what());
      }
    }));
    make_plentiful();
    for (const std::string& report : reports) {
      CHECK_THAT(report, Contains("memory was wanted") &&
                             Contains(std::string("for ") + name_of(place.use)) &&
                             Contains("what may help: "));
    }
  }
}

TEST_CASE("A copy for a checkpoint that has no memory is named") {
  // More than there is, so that nothing of it is read.
  const std::byte live{};
  checkpoint::MemorySnapshot snapshot{{&live, size_t{1} << 50}};
  MemoryMeter meter(0, false, {});
  CHECK_THROWS_AS(snapshot.keep(), std::bad_alloc);
  CHECK_THAT(memory_report_of("std::bad_alloc"),
             Contains("memory was wanted: 1073741824.0 MiB for copies for a checkpoint"));
}

}  // namespace zerorun::testing
