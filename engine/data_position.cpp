#include "engine/data_position.h"

#include <array>
#include <bit>
#include <cstring>
#include <limits>
#include <string>
#include <utility>

#include "base/error.h"
#include "base/permutation.h"

namespace zerorun {
namespace {

// What a checkpoint has, as four numbers of 64 bits in the byte order of the machines that ZeroRun runs on.
struct SavedPosition {
  int64_t epoch;
  int64_t index;
  int64_t samples;
  uint64_t seed;
};
static_assert(std::endian::native == std::endian::little && sizeof(SavedPosition) == 32);

std::string in_words(int64_t samples, uint64_t seed) {
  return std::to_string(samples) + " samples and seed " + std::to_string(seed);
}

}  // namespace

struct DataPosition::State {
  int64_t samples;
  uint64_t seed;
  int64_t used = 0;
  Division division = {};
  std::string conflict = {};  // why the position of a checkpoint cannot be used
  std::function<void()> when_advanced = {};

  int64_t per_micro_step() const { return division.micro_batch * division.ranks; }
};

DataPosition::DataPosition(int64_t samples, uint64_t seed)
    : state_(std::make_shared<State>(State{.samples = samples, .seed = seed})) {
  if (samples < 1) throw UserError("DataPosition: the data has no samples: expected at least one");
}

void DataPosition::divide(const Division& division) {
  const bool fits = division.micro_batch > 0 && division.rank >= 0 && division.rank < division.ranks;
  ZR_CHECK(fits, "rank " + std::to_string(division.rank) + " of " + std::to_string(division.ranks));
  state_->division = division;
}

int64_t DataPosition::epoch() const {
  return state_->used / state_->samples;
}

int64_t DataPosition::index() const {
  return state_->used % state_->samples;
}

int64_t DataPosition::used() const {
  return state_->used;
}

void DataPosition::set_used(int64_t samples) {
  if (samples < 0)
    throw UserError("DataPosition::set_used(" + std::to_string(samples) + "): expected 0 or more");
  state_->used = samples;
  state_->conflict.clear();
}

std::vector<int64_t> DataPosition::numbers(int64_t ahead) const {
  check_usable();
  std::vector<int64_t> numbers(static_cast<size_t>(state_->division.micro_batch));
  int64_t next =
      state_->used + ahead * state_->per_micro_step() + state_->division.rank * state_->division.micro_batch;
  for (int64_t& number : numbers) number = next++;
  return numbers;
}

std::vector<int64_t> DataPosition::samples(int64_t ahead) const {
  std::vector<int64_t> samples = numbers(ahead);
  for (int64_t& sample : samples) sample = shuffled_sample(sample, state_->samples, state_->seed);
  return samples;
}

void DataPosition::advance(int64_t micro_steps) {
  check_usable();
  state_->used += micro_steps * state_->per_micro_step();
  if (state_->when_advanced) state_->when_advanced();
}

void DataPosition::when_advanced(std::function<void()> action) {
  state_->when_advanced = std::move(action);
}

std::vector<uint8_t> DataPosition::saved() const {
  const SavedPosition position{epoch(), index(), state_->samples, state_->seed};
  std::vector<uint8_t> bytes(sizeof position);
  std::memcpy(bytes.data(), &position, sizeof position);
  return bytes;
}

void DataPosition::restore(std::span<const uint8_t> saved) {
  SavedPosition there{};
  const bool is_whole = saved.size() == sizeof there;
  if (is_whole) std::memcpy(&there, saved.data(), sizeof there);
  const bool is_valid = is_whole && there.samples > 0 && there.epoch >= 0 && there.index >= 0 &&
                        there.index < there.samples &&
                        there.epoch < std::numeric_limits<int64_t>::max() / there.samples - 1;
  if (!is_valid) throw UserError("the checkpoint's position in the data is none: load another checkpoint");
  set_used(there.epoch * there.samples + there.index);
  if (there.samples == state_->samples && there.seed == state_->seed) return;
  state_->conflict = "the checkpoint was trained on other data: its position is one in " +
                     in_words(there.samples, there.seed) + ", and this run's data has " +
                     in_words(state_->samples, state_->seed) +
                     ": give the same data and seed, or begin the new data by set_used(0)";
}

void DataPosition::check_usable() const {
  if (!state_->conflict.empty()) throw UserError(state_->conflict);
}

}  // namespace zerorun
