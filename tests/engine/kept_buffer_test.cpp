// Tests of the buffer for inputs of recomputed blocks: where copies lie, and the bits of training with it.
#include "activations/kept_buffer.h"

#include <ATen/ops/arange.h>
#include <ATen/ops/full.h>

#include <catch2/catch.hpp>
#include <cstddef>
#include <string>
#include <vector>

#include "tests/engine/recomputed_model.h"
#include "tests/support/expectations.h"
#include "tests/support/rank_threads.h"
#include "tests/support/settings.h"

namespace zerorun::testing {
namespace {

std::ptrdiff_t bytes_between(const at::Tensor& first, const at::Tensor& second) {
  return static_cast<std::byte*>(second.data_ptr()) - static_cast<std::byte*>(first.data_ptr());
}

}  // namespace

TEST_CASE("Copies lie one behind the other, and free their part of the buffer") {
  KeptBuffer buffer(3);
  const at::Tensor values = at::arange(100, at::kFloat);
  const at::Tensor first = buffer.copy(values), third = [&] {
    const at::Tensor second = buffer.copy(values + 1);
    CHECK(bytes_between(first, second) == 512);  // 400, aligned
    at::Tensor last = buffer.copy(values + 2);
    CHECK(bytes_between(second, last) == 512);
    return last;
  }();
  const at::Tensor small = buffer.copy(at::full({3}, 7, at::kBFloat16));  // where the second one was
  CHECK(bytes_between(first, small) == 512);
  const at::Tensor beyond = buffer.copy(values + 3), large = buffer.copy(at::arange(1000));
  CHECK(at::equal(first, values));
  CHECK(at::equal(third, values + 2));
  CHECK(at::equal(small, at::full({3}, 7, at::kBFloat16)));
  CHECK(at::equal(beyond, values + 3));
  CHECK(at::equal(large, at::arange(1000)));
}

TEST_CASE("Without a number the buffer has room for as many copies as were kept at a time") {
  KeptBuffer buffer({});
  const at::Tensor values = at::arange(64, at::kFloat);
  {
    const std::vector<at::Tensor> kept = {buffer.copy(values), buffer.copy(values)};
    const at::Tensor third = buffer.copy(values);
  }
  const at::Tensor first = buffer.copy(values + 1), second = buffer.copy(values + 2),
                   third = buffer.copy(values + 3);
  CHECK(bytes_between(first, second) == 256);
  CHECK(bytes_between(second, third) == 256);
  CHECK(at::equal(second, values + 2));
  at::Tensor kept;
  {
    KeptBuffer gone(1);
    kept = gone.copy(values);
  }
  CHECK(at::equal(kept, values));  // a copy outlives its buffer
}

TEST_CASE("Inputs of recomputed blocks in one buffer: the bits of a run without recomputation") {
  const std::vector<std::string> keys = {R"("number_checkpoints": 4)", R"("number_checkpoints": 1)", ""};
  for (const auto [stage, number, accumulates, plain] : settings(4, 3, 2, 2)) {
    CAPTURE(stage, number, accumulates, plain);
    const std::string& key = keys[static_cast<size_t>(number)];
    const std::string more = R"(, "activation_checkpointing": {"contiguous_memory_optimization": true)" +
                             (key.empty() ? "" : ", " + key) + "}";
    CHECK_NOTHROW(run_ranks(2, [&, &stage = stage, &accumulates = accumulates,
                                &plain = plain](auto communicator) {
      const BlockRun kept = train_blocks(block_config(stage, "", 1 + accumulates), communicator, 0, plain);
      const BlockRun run = train_blocks(block_config(stage, more, 1 + accumulates), communicator, 0, plain);
      expect_same_bits(run, kept);
      expect(run.forwards[0] == 2 * kept.forwards[0], "recomputed");
    }));
  }
}

}  // namespace zerorun::testing
