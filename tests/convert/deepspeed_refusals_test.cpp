// Tests the reader of DeepSpeed's checkpoints with small files that are made here. Contradictory, differently
// partitioned and unsupported files are refused with a message that names the file; entries that cannot be
// imported are listed.
#include <catch2/catch.hpp>
#include <functional>
#include <nlohmann/json.hpp>

#include "convert/import_checkpoint.h"
#include "tests/convert/pickle_builder.h"
#include "tests/convert/zip_builder.h"
#include "tests/support/temporary_folder.h"

namespace zerorun::testing {
using namespace checkpoint;
using namespace convert;
namespace {

using Catch::Matchers::Contains;
using nlohmann::json;
namespace fs = std::filesystem;
namespace pk = pickled;
using Entries = std::vector<std::pair<std::string, std::string>>;

std::string floats(const std::string& storage, const std::vector<int64_t>& shape,
                   const std::vector<int64_t>& strides) {
  return pk::tensor(pk::storage("FloatStorage", storage, 64), 0, shape, strides);
}

// The files in which two ranks store a parameter "w" of 6 elements.
struct Files {
  int stage = 3;
  std::vector<int64_t> stored = {3, 3};   // elements of the weights on each rank
  std::vector<int64_t> moments = {3, 3};  // elements of exp_avg on each rank
  int groups = 1;                         // parameter groups in the optimizer's files
  Entries model = {};                     // entries of the model's file to replace or to add
  bool is_sgd = false;                    // momentum_buffer instead of step and exp_avg
  std::string dtype_of_rank_1 = "FloatStorage";
};

std::string model_file(const Files& files) {
  Entries entries = {{"buffer_names", "]"},
                     {"module", pk::dict({{"w", floats("0", {6}, {1})}})},
                     {"param_shapes", pk::list({pk::dict({{"w", pk::integers({6})}})})},
                     {"global_steps", pk::integer(7)},
                     {"dp_world_size", pk::integer(2)},
                     {"ds_config", pk::dict({{"optimizer", pk::dict({{"type", pk::text("AdamW")}})}})}};
  if (files.stage == 3) entries[1].second = "}";
  for (const auto& [key, value] : files.model) {
    const auto same = std::ranges::find(entries, key, &Entries::value_type::first);
    if (same == entries.end()) {
      entries.emplace_back(key, value);
    } else {
      same->second = value;
    }
  }
  return torch_archive(pk::whole(pk::dict(entries)), {{"0", std::string(256, '\1')}});
}

std::string optimizer_file(const Files& files, size_t rank) {
  const std::string storage =
      pk::storage(rank == 1 ? files.dtype_of_rank_1 : std::string("FloatStorage"), "0", 64);
  const std::string weights = pk::tensor(storage, 0, {files.stored[rank]}, {1});
  const std::string moment = floats("0", {files.moments[rank]}, {1});
  const std::string states = files.is_sgd ? pk::dict({{"momentum_buffer", moment}})
                                          : pk::dict({{"step", pk::integer(7)}, {"exp_avg", moment}});
  const auto groups = static_cast<size_t>(files.groups);
  const std::string base = pk::dict({{"param_groups", pk::list({pk::dict({{"lr", pk::integer(1)}})})},
                                     {"state", pk::numbered(std::vector<std::string>(groups, states))}});
  const std::string flat = pk::list(std::vector<std::string>(groups, weights));
  const bool by_rank = files.stage == 3;
  return torch_archive(
      pk::whole(pk::dict({{"optimizer_state_dict",
                           pk::dict({{"zero_stage", pk::integer(files.stage)},
                                     {by_rank ? "fp32_flat_groups" : "single_partition_of_fp32_groups", flat},
                                     {by_rank ? "optimizer_state_dict" : "base_optimizer_state", base}})}})),
      {{"0", std::string(256, '\1')}});
}

class Folder {
 public:
  explicit Folder(const Files& files) {
    fs::create_directories(folder_ / "x/global_step7");
    for (const size_t rank : {0, 1}) {
      const std::string prefix = "zero_pp_rank_" + std::to_string(rank) + "_";
      write(prefix + "mp_rank_00_optim_states.pt", optimizer_file(files, rank));
      if (files.stage == 3) write(prefix + "mp_rank_00_model_states.pt", model_file(files));
    }
    if (files.stage != 3) write("mp_rank_00_model_states.pt", model_file(files));
  }
  void write(const std::string& name, const std::string& bytes) const {
    folder_.write("x/global_step7/" + name, bytes);
  }
  void make_folder(const std::string& name) const { fs::create_directory(folder_ / "x/global_step7" / name); }
  void remove(const std::string& name) const { fs::remove(folder_ / "x/global_step7" / name); }
  DeepSpeedCheckpoint read() const {
    return read_deepspeed_checkpoint(local_file_system(), folder_ / "x/global_step7");
  }
  std::string refusal() const {
    return user_error([&] { read(); });
  }
  std::string refusal_of_parent() const {
    return user_error([&] { read_deepspeed_checkpoint(local_file_system(), folder_ / "x"); });
  }

 private:
  TemporaryFolder folder_;
};

std::string refusal(const Files& files) {
  return Folder(files).refusal();
}

DeepSpeedCheckpoint read_with(const Entries& model) {
  return Folder({.stage = 1, .stored = {4, 4}, .moments = {4, 4}, .model = model}).read();
}

}  // namespace

TEST_CASE("Ranks must store as many elements as the parameters' shapes need") {
  CHECK(refusal({}) == "no error");
  CHECK(refusal({.stage = 1}) == "no error");
  CHECK(refusal({.stage = 2, .stored = {4, 4}, .moments = {4, 4}}) == "no error");  // 2 elements of padding
  CHECK(refusal({.stage = 1, .stored = {4, 2}, .moments = {4, 2}}) == "no error");  // the padding is left out
  const char* const otherwise = "the ranks have partitioned it in a way";
  CHECK_THAT(refusal({.stored = {6, 6}}), Contains("zero_pp_rank_0") && Contains(otherwise));
  CHECK_THAT(refusal({.moments = {3, 4}}),
             Contains("zero_pp_rank_1") && Contains("exp_avg") && Contains(otherwise));
  CHECK_THAT(refusal({.stage = 1, .stored = {6, 6}}), Contains(otherwise));
  CHECK_THAT(refusal({.stored = {2, 3}}), Contains("the parameters' shapes need 3"));
  CHECK_THAT(refusal({.stage = 2, .stored = {2, 2}}), Contains("the parameters' shapes need"));
  CHECK_THAT(refusal({.groups = 2}), Contains("2 groups, param_shapes has 1"));
  CHECK_THAT(refusal({.dtype_of_rank_1 = "HalfStorage"}), Contains("another dtype than on rank 0"));
}

TEST_CASE("Files of several runs, missing entries and unsupported parallelism are refused with their names") {
  CHECK_THAT(refusal({.stage = 1, .model = {{"param_shapes", pk::kNone}}}),
             Contains("mp_rank_00_model_states.pt") && Contains("\"param_shapes\" is missing"));
  for (const char* key : {"ds_autoep_layers", "autoep_layers"})
    CHECK_THAT(refusal({.model = {{key, "]"}}}), Contains(key) && Contains("expert parallelism"));
  const Folder stale({});
  stale.write("mp_rank_00_model_states.pt", model_file({.stage = 1}));
  CHECK_THAT(stale.refusal(), Contains("mp_rank_00_model_states.pt (stages 0 to 2)") &&
                                  Contains("remove the files that an earlier run left"));
  const Folder fewer({});
  fewer.remove("zero_pp_rank_1_mp_rank_00_model_states.pt");
  CHECK_THAT(fewer.refusal(), Contains("1 files of model states") && Contains("2 ranks"));
  CHECK_THAT(refusal({.stage = 1, .model = {{"module", pk::dict({{"b\xff", floats("0", {6}, {1})}})}}}),
             Contains("not UTF-8 text"));
}

TEST_CASE("A stage that ZeRO does not have is refused, in universal checkpoints too") {
  for (const int64_t stage : {int64_t{-1}, int64_t{0}, int64_t{4}, (int64_t{1} << 32) + 3}) {
    const std::string refused = "zero_stage: " + std::to_string(stage) + ", expected 1, 2 or 3";
    const Folder universal({.stage = 1});
    universal.make_folder("zero");
    universal.write("zero/optimizer_state.pt",
                    torch_archive(pk::whole(pk::dict({{"zero_stage", pk::integer(stage)}})), {}));
    CHECK_THAT(universal.refusal(), Contains("optimizer_state.pt") && Contains(refused));
    if (stage < 4) CHECK_THAT(refusal({.stage = static_cast<int>(stage)}), Contains(refused));
  }
}

TEST_CASE("SGD's states have no step: the number of applied steps takes its place") {
  for (const int stage : {1, 3}) {
    const DeepSpeedCheckpoint sgd =
        Folder({.stage = stage, .model = {{"skipped_steps", pk::integer(2)}}, .is_sgd = true}).read();
    CHECK(std::get<int64_t>(sgd.facts.numbers.at("steps.optimizer")) == 5);
    CHECK(sgd.parameters.at("w").states.contains("momentum_buffer"));
  }
  const Folder at_stage_0({.stage = 1});
  for (const char* rank : {"0", "1"})
    at_stage_0.remove(std::string("zero_pp_rank_") + rank + "_mp_rank_00_optim_states.pt");
  const std::string state = pk::dict({{"momentum_buffer", floats("0", {6}, {1})}});
  at_stage_0.write(
      "mp_rank_00_model_states.pt",
      model_file(
          {.stage = 1,
           .model = {{"param_shapes", pk::kNone},
                     {"optimizer", pk::dict({{"param_groups", pk::list({pk::dict({{"lr", pk::integer(1)}})})},
                                             {"state", pk::numbered({state})}})}}}));
  CHECK(std::get<int64_t>(at_stage_0.read().facts.numbers.at("steps.optimizer")) == 7);
}

TEST_CASE("Without optimizer files, and without latest, the error says what is missing") {
  const Folder model_only({.stage = 1});
  for (const char* rank : {"0", "1"})
    model_only.remove(std::string("zero_pp_rank_") + rank + "_mp_rank_00_optim_states.pt");
  CHECK_THAT(model_only.refusal(), Contains("global_step7") && Contains("no *_optim_states.pt") &&
                                       Contains("copy those of all nodes"));
  CHECK_THAT(model_only.refusal_of_parent(),
             Contains("no file \"latest\"") && Contains("one of its checkpoints: global_step7"));
}

TEST_CASE("Keys that are dicts of dicts do not take all memory") {
  std::string nested = "}";
  for (int level = 0; level < 40; ++level) nested = "}(" + nested + pk::kNone + "u";
  const DeepSpeedCheckpoint source = read_with({{"nested", nested}, {"kept", pk::integer(3)}});
  CHECK(json::parse(source.facts.client_state) == json({{"kept", 3}}));
  REQUIRE(source.facts.left_out.size() >= 1);
  CHECK_THAT(source.facts.left_out.back(), Contains("nested") && Contains("more than 64 MiB"));
}

TEST_CASE("A moment in another memory layout than its parameter is refused") {
  const std::string module = pk::dict({{"w", floats("0", {2, 3}, {3, 1})}});
  const auto optimizer = [](const std::vector<int64_t>& strides) {
    return pk::dict({{"param_groups", pk::list({pk::dict({{"lr", pk::integer(1)}})})},
                     {"state", pk::numbered({pk::dict({{"exp_avg", floats("0", {2, 3}, strides)}})})}});
  };
  const auto message = [&](const std::vector<int64_t>& strides) {
    const Folder folder(
        {.stage = 1,
         .model = {{"module", module}, {"param_shapes", pk::kNone}, {"optimizer", optimizer(strides)}}});
    folder.remove("zero_pp_rank_0_mp_rank_00_optim_states.pt");
    folder.remove("zero_pp_rank_1_mp_rank_00_optim_states.pt");
    return folder.refusal();
  };
  CHECK(message({3, 1}) == "no error");
  CHECK_THAT(message({1, 2}), Contains("exp_avg has another memory layout"));
}

TEST_CASE("Without ds_config the module's dtype is the precision, and AdamW is assumed") {
  const auto module = [](const std::string& type) {
    return pk::dict({{"w", pk::tensor(pk::storage(type, "0", 64), 0, {6}, {1})}});
  };
  for (const auto& [type, precision] : Entries{{"FloatStorage", "fp32"}, {"BFloat16Storage", "bf16"}}) {
    for (const std::string& config : {pk::kNone, pk::text("ds_config.json")}) {
      const DeepSpeedCheckpoint found = read_with({{"module", module(type)}, {"ds_config", config}});
      CHECK(found.facts.precision == precision);
      REQUIRE(found.facts.left_out.size() == 1);
      CHECK_THAT(found.facts.left_out[0], Contains("AdamW is assumed"));
      CHECK(found.parameters.at("w").states.contains(precision == "fp32" ? "value" : "master"));
    }
  }
  const Files none{.stage = 1, .model = {{"module", "}"}, {"ds_config", pk::kNone}}};
  CHECK_THAT(refusal(none), Contains("the precision of training"));
  const auto enabled_as_1 = pk::dict({{"bf16", pk::dict({{"enabled", pk::integer(1)}})}});
  CHECK(read_with({{"ds_config", enabled_as_1}}).facts.precision == "bf16");
}

TEST_CASE("Client state that JSON cannot express is listed, and the rest is imported") {
  const DeepSpeedCheckpoint small = read_with({{"epoch", pk::integer(3)}});
  CHECK(small.facts.left_out.empty());
  CHECK(json::parse(small.facts.client_state) == json({{"epoch", 3}}));
  const DeepSpeedCheckpoint tensor =
      read_with({{"epoch", pk::integer(3)}, {"history", floats("0", {6}, {1})}});
  REQUIRE(tensor.facts.left_out.size() == 1);
  CHECK_THAT(tensor.facts.left_out[0], Contains("values of tensors") && Contains("history"));
  // A text of 200 kB is referenced 1,000 times, so a file of 0.2 MB would become 200 MB of JSON.
  std::string repeated = "](" + pk::text(std::string(200'000, 'x')) + "q\1";
  for (int i = 0; i < 1000; ++i) repeated += "h\1";
  const DeepSpeedCheckpoint huge = read_with({{"epoch", pk::integer(3)}, {"log", repeated + "e"}});
  REQUIRE(huge.facts.left_out.size() == 1);
  CHECK_THAT(huge.facts.left_out[0], Contains("more than 64 MiB of text"));
  CHECK(json::parse(huge.facts.client_state) == json({{"epoch", 3}}));
}

}  // namespace zerorun::testing
