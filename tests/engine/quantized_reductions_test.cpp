// Tests zero_quantized_gradients: gradients are sent in 8 bits, and summed exactly within groups of ranks.
#include "zero/quantized_reductions.h"

#include <torch/torch.h>

#include <catch2/catch.hpp>
#include <chrono>
#include <cmath>
#include <limits>
#include <memory>
#include <string>
#include <vector>

#include "tests/engine/collected_state.h"
#include "tests/engine/net.h"
#include "tests/support/expectations.h"
#include "tests/support/rank_threads.h"
#include "zero/quantized_values.h"

namespace zerorun::testing {
namespace {

constexpr int64_t kSlice = 700;  // elements; three blocks, the last one not full

void run_with_messages(int ranks, const RankBody& body) {
  run_ranks(ranks, body, std::chrono::seconds(60), /*shares_memory=*/false);
}

at::Tensor gradients_of(int rank, int ranks) {
  return testing::values({ranks * kSlice}, static_cast<uint64_t>(rank) + 5);
}

std::shared_ptr<Communicator> consecutive(Communicator& world, int members) {
  std::vector<RankGroup> groups;
  for (int rank = 0; rank < world.world_size(); ++rank) {
    if (rank % members == 0)
      groups.push_back({.name = "group " + std::to_string(rank / members), .ranks = {}});
    groups.back().ranks.push_back(rank);
  }
  return world.split(groups);
}

StateCase reducing_case(bool quantizes) {
  StateCase how = all_state_cases().front();
  how.zero = std::string(R"(, "zero_quantized_gradients": )") + (quantizes ? "true" : "false");
  return how;
}

}  // namespace

TEST_CASE("A sum in 8 bits is off by at most half a scale for each group that has sent") {
  const int ranks = 4;
  const int members = GENERATE(1, 2);
  const auto dtype = GENERATE(at::kFloat, at::kBFloat16);
  CAPTURE(members, dtype);
  run_with_messages(ranks, [&](std::shared_ptr<Communicator> world) {
    const std::shared_ptr<Communicator> group = members > 1 ? consecutive(*world, members) : nullptr;
    QuantizedReductions quantized(true, *world, group.get());
    const int rank = world->rank();
    const at::Tensor own = gradients_of(rank, ranks).to(dtype);
    const at::Tensor output = at::empty({kSlice}, own.options());
    world->volume().reset();
    quantized.reduce_scatter(output, own.clone(), "gradients")->wait();
    const int64_t sends = ranks / members - 1;
    expect(world->volume().elements_of_messages() ==
               static_cast<double>(sends * ((kSlice + 255) / 256) * (256 + 4)),
           "the formula's bytes");
    // The formula: this rank's group is exact; of the others each block's largest value gives the step.
    at::Tensor exact = at::zeros({kSlice}, at::kDouble), allowed = at::zeros({kSlice}, at::kDouble);
    for (int first = 0; first < ranks; first += members) {
      at::Tensor sum = at::zeros({kSlice}, at::kFloat);
      for (int member = first; member < first + members; ++member)
        sum += gradients_of(member, ranks).to(dtype).narrow(0, rank * kSlice, kSlice).to(at::kFloat);
      sum = sum.to(dtype).to(at::kDouble);  // as sums of a group are rounded
      exact += sum;
      if (first == rank / members * members) continue;
      for (int64_t begin = 0; begin < kSlice; begin += 256) {
        const int64_t count = std::min<int64_t>(256, kSlice - begin);
        allowed.narrow(0, begin, count) += sum.narrow(0, begin, count).abs().max() / 127 / 2;
      }
    }
    const at::Tensor error = (output.to(at::kDouble) - exact).abs();
    const double rounding = dtype == at::kFloat ? 1e-6 : 8e-3;  // of the output's dtype
    expect((error <= allowed * 1.0001 + exact.abs() * rounding + 1e-6).all().item<bool>(),
           "within the bound");
    expect(error.max().item<double>() > 0, "quantized");
    world->barrier("the end")->wait();
  });
}

TEST_CASE("A gradient that is not finite is not finite on the rank that owns it") {
  const float bad = GENERATE(std::numeric_limits<float>::infinity(), std::numeric_limits<float>::quiet_NaN());
  run_with_messages(2, [&](std::shared_ptr<Communicator> world) {
    QuantizedReductions quantized(true, *world, nullptr);
    at::Tensor own = at::ones({2 * kSlice});
    if (world->rank() == 0) own[kSlice + 300] = bad;
    const at::Tensor output = at::empty({kSlice});
    quantized.reduce_scatter(output, own, "gradients")->wait();
    expect(std::isfinite(output[300].item<float>()) == (world->rank() == 0), "the owner sees it");
    expect(at::equal(output.narrow(0, 0, 256), at::full({256}, 2.0F)), "other blocks are exact");
    world->barrier("the end")->wait();
  });
}

TEST_CASE("Ranks of one group of sums send no gradients in 8 bits") {
  std::vector<float> losses[2];
  for (const bool quantizes : {false, true}) {
    run_with_messages(4, [&](std::shared_ptr<Communicator> world) {
      world->set_sum_group(4);
      StateTraining training(reducing_case(quantizes), 3, "fp32", world, R"(, "zerorun": {"sum_group": 4})");
      for (int step = 0; step < 3; ++step) {
        const float loss = training.step(step);
        if (world->rank() == 0) losses[quantizes].push_back(loss);
      }
      world->barrier("the end")->wait();
    });
  }
  CHECK(losses[0] == losses[1]);
}

TEST_CASE("Training with gradients in 8 bits goes as without, and sends the formula's bytes") {
  const int ranks = 4;
  const std::string precision = GENERATE("fp32", "bf16", "fp16");
  const int members = GENERATE(1, 2);
  CAPTURE(precision, members);
  std::vector<float> losses[2];
  double sent = 0, expected = 0, reduced[2] = {0, 0};
  for (const bool quantizes : {false, true}) {
    run_with_messages(ranks, [&](std::shared_ptr<Communicator> world) {
      world->set_sum_group(members);
      StateTraining training(reducing_case(quantizes), 3, precision, world);
      const bool is_first = world->rank() == 0;
      for (int step = 0; step < 40; ++step) {
        world->volume().reset();
        const float loss = training.step(step);
        if (is_first) losses[quantizes].push_back(loss);
      }
      if (is_first) {
        sent = world->volume().elements_of_messages();
        reduced[quantizes] = world->volume().elements(Collective::reduce_scatter);
        for (int bucket = 0; quantizes && bucket < training.state->buckets.trained_count(); ++bucket) {
          const int64_t slice = training.state->store.layout(bucket).slice_numel;
          expected += static_cast<double>((ranks / members - 1) * ((slice + 255) / 256) * (256 + 4));
        }
      }
      world->barrier("the end")->wait();
    });
  }
  CHECK(sent == expected);
  CHECK(reduced[0] > 0);
  CHECK(reduced[1] == 0);
  for (size_t step = 0; step < losses[0].size(); ++step) {
    CAPTURE(step, losses[0][step], losses[1][step]);
    CHECK(std::abs(losses[0][step] - losses[1][step]) < 0.05F * losses[0][step]);
  }
  CHECK(losses[0] != losses[1]);
}

}  // namespace zerorun::testing
