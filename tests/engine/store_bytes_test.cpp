// That all memory for slices is in the store: what it counts, against what the device has given out.
#include <catch2/catch.hpp>

#include "tests/engine/partition_support.h"
#include "tests/engine/state_support.h"
#include "tests/support/rank_threads.h"
#include "tests/support/recording_device.h"

namespace zerorun::testing {
namespace {

// The step's facts, tallies, Lamb's norms: a few numbers a rank, a parameter or a bucket.
constexpr int64_t kNumbers = 4096;
// Any tensor of a slice is larger: the smallest is a third of a bucket of 61 x 67 parameters in 16 bits.
static_assert(61 * 67 / 3 * 2 > kNumbers / 2);

void check_bytes(const StateTraining& training, const Recording& recording, const std::string& when) {
  const SliceStore& store = training.state->store;
  int64_t kept = 0;
  store.for_each([&](int, const StateTensor& state) { kept += store.bytes(state); });
  const BytesByCategory bytes = training.engine->bytes_by_category();
  int64_t beside = 0;  // stays where the program has it
  for (const NamedTensor& other : training.state->others)
    beside += static_cast<int64_t>(other.tensor.nbytes());
  expect(bytes.model_states() + bytes.buffers - beside == kept,
         when + ": the categories are not what is kept");
  const int64_t rest = recording.live_bytes - kept - bytes.buckets - bytes.gathered;
  expect(rest >= 0 && rest < kNumbers, when + ": " + std::to_string(recording.live_bytes) +
                                           " bytes are given out, and " + std::to_string(kept) + " kept, " +
                                           std::to_string(bytes.buckets) + " in buckets, " +
                                           std::to_string(bytes.gathered) + " gathered");
}

}  // namespace

TEST_CASE("The store has all that the device has given out for slices") {
  const int stage = GENERATE(0, 1, 2, 3);
  const std::string precision = GENERATE("fp32", "bf16", "fp16");
  const auto [ranks, accumulation] =
      GENERATE(std::pair(3, ""), std::pair(2, R"(, "gradient_accumulation_steps": 2)"));
  for (const StateCase& how : all_state_cases()) {
    CAPTURE(how.name, stage, precision, ranks, accumulation);
    CHECK_NOTHROW(run_ranks(ranks, [&](std::shared_ptr<Communicator> communicator) {
      Recording recording;
      const auto counted = make_recording_communicator(std::move(communicator), recording);
      StateTraining training(how, stage, precision, counted, accumulation);
      check_bytes(training, recording, "at the start");
      for (int step = 0; step < 2; ++step) {
        training.step(step);
        check_bytes(training, recording, "step " + std::to_string(step));
      }
    }));
  }
}

}  // namespace zerorun::testing
