// Trains the tiny GPT-2 in a table of settings. All stages, with whatever a configuration adds to them, give
// the bits of stage 0 without accumulation. With accumulation stages 0 and 1 give the same bits, and so do
// stages 2 and 3. Each training must also take the bytes and send the elements that the formulas give
// (docs/architecture.md).
#include <catch2/catch.hpp>

#include "tests/support/settings.h"
#include "tests/support/temporary_folder.h"
#include "tests/support/tiny_gpt2.h"

namespace zerorun::testing {
namespace {

struct Precision {
  const char* config;
  double value = 2;     // bytes of a value
  bool narrow = false;  // whether gradients are accumulated in 16 bits
  double master = 4, moments = 8;
};

// The loss scale doubles after the third step. The fourth step overflows and halves it.
#define FP16 \
  R"("fp16": {"enabled": true, "initial_scale_power": 12, "loss_scale_window": 2, "hysteresis": 1},)"
constexpr Precision kPrecisions[] = {
    {"", 4, false, 0},
    {R"("bf16": {"enabled": true},)"},
    {FP16},
    {R"("bf16": {"enabled": true}, "data_types": {"master_from_fp32": true},)"},
    {FP16 R"("data_types": {"grad_accum_dtype": "fp16"},)", 2, true},
    {R"("bf16": {"enabled": true, "bf16_master_weights_and_grads": true, "bf16_optimizer_states": true},
        "zerorun": {"stochastic_rounding": true, "rounding_seed": 5},)",
     2, true, 0, 4}};
// Tried in a few forms only.
constexpr Precision kPartlyNarrow[] = {
    {R"("bf16": {"enabled": true}, "data_types": {"grad_accum_dtype": "bf16"},)", 2, true},
    {R"("bf16": {"enabled": true, "bf16_master_weights_and_grads": true},
        "data_types": {"grad_accum_dtype": "fp32"},)",
     2, false, 0},
    {R"("bf16": {"enabled": true, "bf16_optimizer_states": true}, "zerorun": {"stochastic_rounding": true},)",
     2, false, 4, 4}};
constexpr int kFp16 = 2;
#undef FP16

// Which formulas a run must follow.
enum class Formulas {
  all,
  only_bits,   // much padding, or parameters that stay gathered at stage 3
  only_bytes,  // and no promise of how often a bucket is gathered
};

// A stage and what is added to it.
struct Form {
  int stage;
  std::string zero = {};  // more keys of zero_optimization
  std::optional<int64_t> bucket_numel = {};
  double least_gathers = 1, most_gathers = 1;  // of each bucket, in a micro-step of stage 3
  Formulas formulas = Formulas::all;
  bool shares_memory = false;
  bool states_in_files = false, values_in_files = false;
};

constexpr int64_t kBucket = 8000;  // elements; gives the tiny GPT-2 about 16 buckets
const std::string kNoneStays = R"(, "stage3_param_persistence_threshold": 0)";

std::string limits(int64_t max_live, int64_t prefetch, const std::string& more = "") {
  return R"(, "stage3_max_live_parameters": )" + std::to_string(max_live) +
         R"(, "stage3_prefetch_bucket_size": )" + std::to_string(prefetch) + more;
}

// Forms that differ in one or two keys: a setting tries one of them, or with tries_all() all.
using Family = std::vector<Form>;

std::vector<Family> whole_families() {
  std::vector<Family> families;
  const std::string overlaps = R"(, "overlap_comm": true)";
  for (const int stage : {0, 1, 2}) {
    families.push_back({{.stage = stage},
                        {.stage = stage, .zero = R"(, "overlap_comm": false)"},
                        {.stage = stage, .zero = overlaps}});
    Family& of_buckets = families.emplace_back();
    for (const int64_t numel : {5'000, 20'000, 1'000'000})
      of_buckets.push_back({.stage = stage, .zero = overlaps, .bucket_numel = numel});
    of_buckets.push_back(
        {.stage = stage, .zero = overlaps, .bucket_numel = 1, .formulas = Formulas::only_bits});
  }
  return families;
}

Family limited_family(int64_t prefetch) {
  Form form{.stage = 3, .bucket_numel = kBucket};
  form.zero = limits(1'000'000'000, prefetch, kNoneStays);
  Family family{form};
  // The engine releases the bucket whose next use is furthest ahead (Belady's rule). So some buckets stay
  // in memory from forward to backward, and each bucket is gathered at most twice per micro-step.
  form.most_gathers = 2;
  for (const int64_t max_live : {20'000, 35'000, 60'000}) {
    form.zero = limits(max_live, prefetch, kNoneStays);
    family.push_back(form);
  }
  form.least_gathers = 1.94;
  form.zero = limits(60'000, prefetch, kNoneStays + R"(, "stage3_max_reuse_distance": 0)");
  family.push_back(form);
  form.formulas = Formulas::only_bytes;
  form.zero = limits(0, prefetch, kNoneStays);
  family.push_back(form);
  return family;
}

std::vector<Family> all_families(const TemporaryFolder& folder) {
  std::vector<Family> families = whole_families();
  for (const int64_t prefetch : {0, 20'000, 50'000'000}) families.push_back(limited_family(prefetch));
  Family& some_stay = families.emplace_back();
  for (const char* persistence : {"64", "1000", "100000"}) {
    const std::string threshold = R"(, "stage3_param_persistence_threshold": )";
    some_stay.push_back({.stage = 3,
                         .zero = limits(20'000, 50'000'000, threshold + persistence),
                         .bucket_numel = kBucket,
                         .formulas = Formulas::only_bits});
  }
  const std::string few_stay = R"(, "stage3_param_persistence_threshold": 100)";
  Family& sharing = families.emplace_back();
  for (const int stage : {1, 2, 3})
    sharing.push_back({.stage = stage, .zero = few_stay, .bucket_numel = kBucket, .shares_memory = true});
  const std::string place = R"({"device": "nvme", "nvme_path": ")" + (folder / "").string() + '"';
  const std::string states = R"(, "offload_optimizer": )" + place + "}";
  const std::string values = few_stay + R"(, "offload_param": )" + place + R"(, "max_in_cpu": 0})";
  Family states_in_files, values_in_files;
  for (const bool shares_memory : {false, true}) {
    Form form{.stage = 1, .zero = few_stay + states, .shares_memory = shares_memory, .states_in_files = true};
    for (; form.stage < 3; ++form.stage) states_in_files.push_back(form);
    form.formulas = Formulas::only_bytes;
    states_in_files.push_back(form);
    form.zero = values;
    form.values_in_files = true;
    form.states_in_files = false;
    values_in_files.push_back(form);
    form.states_in_files = true;
    form.zero += states;
    values_in_files.push_back(form);
    form.zero += limits(20'000, 10'000);  // few buckets are gathered at a time, and a few are prefetched
    values_in_files.push_back(form);
  }
  families.insert(families.end(), {states_in_files, values_in_files});
  return families;
}

struct Setting {
  int ranks;
  const Precision& precision;
  int accumulation;
  double clipping;
};

constexpr int kRanks = 4;  // at most
constexpr int64_t kSteps = 5;
constexpr double kTaken = kSteps - 1;  // the fourth step is skipped

RunResult train(const Setting& setting, const Form& form, int64_t steps = kSteps) {
  const std::string config =
      R"({"train_micro_batch_size_per_gpu": 2, "gradient_accumulation_steps": )" +
      std::to_string(setting.accumulation) + R"(, "gradient_clipping": )" + std::to_string(setting.clipping) +
      R"(, "optimizer": {"type": "AdamW", "params": {"lr": 0.001, "weight_decay": 0.1}},)" +
      setting.precision.config + R"("zero_optimization": {"stage": )" + std::to_string(form.stage) +
      form.zero + "}}";
  return train_tiny_gpt2(config, {.world_size = setting.ranks,
                                  .steps = steps,
                                  .bucket_numel = form.bucket_numel,
                                  .inject_inf_steps = {3},
                                  .shares_memory = form.shares_memory});
}

// Bytes per parameter on one rank.
struct BytesPerParameter {
  double value, gradient, states;  // states: moments, and the master weight of a 16-bit value

  // Gradients are in the accumulation dtype at stages 2 and 3, and at all stages if they are accumulated.
  // Otherwise they are in the dtype of the values.
  BytesPerParameter(const Setting& setting, const Form& form) {
    const Precision& precision = setting.precision;
    const bool wide = !precision.narrow && (form.stage >= 2 || setting.accumulation > 1);
    const double n = setting.ranks;
    value = precision.value / (form.stage == 3 || form.shares_memory ? n : 1);
    gradient = (wide ? 4 : precision.value) / (form.stage >= 2 ? n : 1);
    states = (precision.master + precision.moments) / (form.stage >= 1 ? n : 1);
  }
  double sum() const { return value + gradient + states; }
};

void check_bytes(const RunResult& run, const Setting& setting, const Form& form, double parameters) {
  const BytesPerParameter bytes(setting, form);
  if (form.states_in_files || form.values_in_files) {
    CHECK((run.bytes.moments == 0) == form.states_in_files);
    if (form.states_in_files) CHECK(run.bytes.master == 0);
    // Files have room for two generations of the states.
    const double in_files =
        (form.values_in_files ? bytes.value : 0) + (form.states_in_files ? 2 * bytes.states : 0);
    CHECK(static_cast<double>(run.bytes.in_files) > in_files * parameters);
    if (form.values_in_files) CHECK(static_cast<double>(run.bytes.parameters) < bytes.value * parameters / 5);
    return;
  }
  CHECK(run.bytes.in_files == 0);
  const bool some_stay = form.stage == 3 && form.zero.find(kNoneStays) == std::string::npos;
  CHECK(static_cast<double>(run.bytes.model_states()) == Approx(bytes.sum() * parameters).epsilon(0.05));
  CHECK(run.formula_bytes == Approx(bytes.sum() * parameters).epsilon(some_stay ? 0.02 : 1e-6));
  const double master = setting.precision.master / (form.stage == 0 ? 1 : setting.ranks);
  CHECK(static_cast<double>(run.bytes.master) == Approx(master * parameters).epsilon(0.05));
  CHECK(static_cast<double>(run.bytes.gradients) == Approx(bytes.gradient * parameters).epsilon(0.05));
  if (form.shares_memory) CHECK(run.bytes.gathered == 0);
  // The whole gradients of a bucket are freed once they are reduced. So at most two buckets are being filled
  // and two reduced at a time. The largest buckets of one parameter are matrices of 16,384 elements.
  if (form.stage == 2 && !form.bucket_numel && setting.precision.value == 4)
    CHECK(run.bytes.buckets <= 4 * (16384 + 16 * setting.ranks) * 4);
}

void check_traffic(const RunResult& run, const Setting& setting, const Form& form, double parameters) {
  // The tolerance of 2 % allows for padding: less than 16 elements per parameter and 16 x ranks per bucket.
  // All parameters together have 118,528 elements.
  const double once = parameters * (setting.ranks - 1) / setting.ranks;
  const double reductions = static_cast<double>(kSteps) * (form.stage < 2 ? 1 : setting.accumulation);
  CHECK(run.reduce_scattered >= reductions * once);
  CHECK(run.reduce_scattered <= 1.02 * reductions * once);
  // Stage 0 gathers gradients in every step. Stages 1 and 2 gather what a step has updated, and so does stage
  // 3 if ranks share memory.
  const double gathers = form.stage == 0                        ? static_cast<double>(kSteps)
                         : form.stage < 3 || form.shares_memory ? kTaken
                                                                : reductions;
  CHECK(run.all_gathered >= form.least_gathers * gathers * once);
  CHECK(run.all_gathered <= 1.02 * form.most_gathers * gathers * once);
}

void check_form(const Form& form, const Setting& setting, const RunResult& reference) {
  CAPTURE(form.stage, form.zero, form.bucket_numel.value_or(0), form.shares_memory);
  RunResult run;
  try {
    run = train(setting, form);
  } catch (const std::exception& error) {
    FAIL_CHECK(error.what());
    return;
  }
  check_same_bits(run, reference);
  CHECK(run.skipped == std::vector<int64_t>{0, 0, 0, 1, 1});
  if (&setting.precision == &kPrecisions[kFp16])
    CHECK(run.loss_scales == std::vector<double>{4096, 4096, 8192, 4096, 4096});
  CHECK(run.residency.departures == 0);
  if (form.formulas == Formulas::only_bits) return;
  double parameters = 0;
  for (const auto& [name, values] : run.parameters) parameters += static_cast<double>(values.numel());
  check_bytes(run, setting, form, parameters);
  if (form.formulas == Formulas::all) check_traffic(run, setting, form, parameters);
}

}  // namespace

// With tries_all() every form meets every setting. Otherwise each family meets each precision, each number of
// ranks, accumulation and clipping, and its forms take turns.
TEST_CASE("The same bits in every setting, and the bytes and elements sent of the formulas") {
  const TemporaryFolder folder;
  const std::vector<Family> families = all_families(folder);
  std::vector<size_t> tried(families.size());
  for (const auto& [group, type, accumulates, clips] : settings(kRanks, std::size(kPrecisions), 2, 2)) {
    // So a group of families that are tried together meets another number of ranks in each precision.
    const int ranks = 1 + (group + type) % kRanks;
    const Setting setting{ranks, kPrecisions[type], accumulates == 0 ? 1 : 3, clips == 0 ? 0.0 : 1.0};
    CAPTURE(setting.ranks, setting.precision.config, setting.accumulation, setting.clipping);
    RunResult references[2];
    for (size_t number = 0; number < families.size(); ++number) {
      if (!tries_all() && static_cast<int>(number % kRanks) != group) continue;
      const Family& family = families[number];
      for (size_t tries = tries_all() ? family.size() : 1; tries > 0; --tries) {
        const Form& form = family[tried[number]++ % family.size()];
        // Stages 2 and 3 reduce the gradients of each micro-step.
        const bool adds_sums = setting.accumulation > 1 && form.stage >= 2;
        RunResult& reference = references[adds_sums ? 1 : 0];
        if (reference.losses.empty()) reference = train(setting, {.stage = adds_sums ? 2 : 0});
        check_form(form, setting, reference);
      }
    }
  }
  for (size_t number = 0; number < families.size(); ++number) CHECK(tried[number] >= families[number].size());
}

TEST_CASE("The same bits if only gradients, only weights or only optimizer states are bfloat16") {
  const TemporaryFolder folder;
  const std::string in_files =
      R"(, "offload_optimizer": {"device": "nvme", "nvme_path": ")" + (folder / "").string() + "\"}";
  for (const Precision& precision : kPartlyNarrow) {
    const Setting setting{2, precision, 1, 1};
    const RunResult reference = train(setting, {.stage = 0});
    for (const Form& form : {Form{.stage = 1}, Form{.stage = 2, .shares_memory = true},
                             Form{.stage = 3, .zero = kNoneStays, .bucket_numel = kBucket},
                             Form{.stage = 2, .zero = in_files, .states_in_files = true}}) {
      CAPTURE(precision.config, form.stage, form.zero);
      const RunResult run = train(setting, form);
      check_same_bits(run, reference);
      double parameters = 0;
      for (const auto& [name, values] : run.parameters) parameters += static_cast<double>(values.numel());
      check_bytes(run, setting, form, parameters);
    }
  }
}

TEST_CASE("The same bits with optimizer states in 8 bits, and their bytes") {
  const TemporaryFolder folder;
  const std::string values_in_files =
      limits(20'000, 0, kNoneStays) +
      R"(, "offload_param": {"device": "nvme", "max_in_cpu": 0, "nvme_path": ")" + (folder / "").string() +
      "\"}";
  const char* const precisions[] = {
      R"("zerorun": {"optimizer_states_in_8_bits": true},)",
      R"("bf16": {"enabled": true, "bf16_master_weights_and_grads": true},
         "zerorun": {"optimizer_states_in_8_bits": true, "stochastic_rounding": true},)",
      R"("fp16": {"enabled": true, "initial_scale_power": 12, "loss_scale_window": 2, "hysteresis": 1},
         "zerorun": {"optimizer_states_in_8_bits": true},)"};
  for (int ranks = 1; ranks <= 3; ++ranks) {
    const Precision precision{precisions[ranks - 1]};
    const Setting setting{ranks, precision, 1, 1};
    const RunResult reference = train(setting, {.stage = 0});
    for (const Form& form : {Form{.stage = 1, .bucket_numel = 5'000}, Form{.stage = 2, .shares_memory = true},
                             Form{.stage = 3, .zero = kNoneStays, .bucket_numel = kBucket},
                             Form{.stage = 3, .zero = values_in_files, .values_in_files = true}}) {
      CAPTURE(precision.config, form.stage, form.zero);
      const RunResult run = train(setting, form);
      check_same_bits(run, reference);
      double parameters = 0;
      for (const auto& [name, values] : run.parameters) parameters += static_cast<double>(values.numel());
      // Two bytes an element and eight a block of 256, and padding to whole blocks.
      const double moments = (2 + 8.0 / 256) * parameters / ranks;
      CHECK(static_cast<double>(run.bytes.moments) >= moments);
      CHECK(static_cast<double>(run.bytes.moments) <= 1.1 * moments);
    }
  }
}

TEST_CASE("With accumulation stage 2 gives the losses of stage 0 within rounding") {
  for (const auto& [ranks, type, clips] : settings(3, 3, 2)) {
    if (!tries_all() && type != (ranks + 1) % 3) continue;  // each precision, on another number of ranks
    const Setting setting{ranks + 1, kPrecisions[type], 4, clips == 0 ? 0.0 : 1.0};
    CAPTURE(setting.ranks, setting.precision.config, setting.clipping);
    const RunResult stage0 = train(setting, {.stage = 0}), stage2 = train(setting, {.stage = 2});
    CHECK(stage2.skipped == stage0.skipped);
    CHECK(largest_relative_loss_difference(stage2, stage0) <= (type == 0 ? 1e-6 : 3e-4));
  }
}

TEST_CASE("The trace is followed: nothing is allocated for parameters after the first iterations") {
  for (const int accumulation : {1, 3}) {
    for (const int64_t max_live : {0, 35'000, 1'000'000'000}) {
      CAPTURE(accumulation, max_live);
      const Setting setting{2, kPrecisions[0], accumulation, 1};
      const Form form{.stage = 3, .zero = limits(max_live, 20'000, kNoneStays), .bucket_numel = kBucket};
      const ResidencyReport two = train(setting, form, 2).residency, six = train(setting, form, 6).residency;
      CHECK(six.unplanned_allocations == two.unplanned_allocations);
      CHECK(six.departures == 0);
      CHECK(six.gathers > two.gathers);
      CHECK(six.peak_resident_bytes == two.peak_resident_bytes);
    }
  }
}

TEST_CASE("Averaging before or after the sum agrees within rounding") {
  const Setting setting{3, kPrecisions[0], 1, 1};
  const RunResult plain = train(setting, {.stage = 2});
  for (const char* how : {R"("prescale_gradients": true,)", R"("gradient_predivide_factor": 3.0,)"}) {
    CAPTURE(how);
    const Precision precision{how, 4};
    const RunResult run = train({3, precision, 1, 1}, {.stage = 2});
    CHECK(largest_relative_loss_difference(run, plain) <= 1e-6);
    CHECK(run.grad_norms.back() == Approx(plain.grad_norms.back()).epsilon(1e-5));
  }
}

}  // namespace zerorun::testing
