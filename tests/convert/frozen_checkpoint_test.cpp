// Tests that small checkpoints of DeepSpeed are read and imported with the bits that DeepSpeed reported when
// it saved. The model has a frozen parameter and buffers; some of the checkpoints are in fp16.
#include <catch2/catch.hpp>
#include <fstream>
#include <nlohmann/json.hpp>

#include "checkpoint/saved_state.h"
#include "checkpoint/state_header.h"
#include "convert/import_checkpoint.h"
#include "tests/convert/fixture_hash.h"
#include "tests/convert/pickle_builder.h"
#include "tests/convert/zip_builder.h"
#include "tests/support/temporary_folder.h"

namespace zerorun::testing {
using namespace checkpoint;
using namespace convert;
namespace {

namespace fs = std::filesystem;
using Catch::Matchers::Contains;
using nlohmann::json;

constexpr const char* kCases[] = {"frozen_fp32_s0_w2", "frozen_fp32_s1_w2", "frozen_bf16_s1_w2",
                                  "frozen_bf16_s3_w2", "frozen_fp16_s2_w2", "frozen_fp16_s3_w2",
                                  "exclude_fp32_s2_w2"};

fs::path folder_of(const std::string& name) {
  return fs::path(ZERORUN_SOURCE_DIR "/tests/convert/data") / name;
}

json facts_of(const std::string& name) {
  std::ifstream file(folder_of(name) / "truth.json");
  return json::parse(file);
}

// One tensor that truth.json describes, such as "exp_avg_sq.head.weight".
struct Expected {
  std::string parameter;
  std::string state;
  std::string dtype;
  std::vector<int64_t> shape;
  std::string hash;
  bool trained = false;
};

std::vector<Expected> expected_of(const json& facts, const std::string& precision) {
  static const std::map<std::string, std::string> kDtypes = {
      {"float32", "F32"}, {"bfloat16", "BF16"}, {"float16", "F16"}, {"int64", "I64"}};
  std::vector<Expected> all;
  for (const auto& [name, truth] : facts["truth"].items()) {
    Expected one;
    const size_t dot = name.find('.');
    one.parameter = name.substr(dot + 1);
    one.state = name.substr(0, dot);
    one.trained = one.state != "frozen" && one.state != "buffer";
    if (!one.trained || (one.state == "master" && precision == "fp32")) one.state = "value";
    one.dtype = kDtypes.at(truth["dtype"]);
    one.shape = truth["shape"].get<std::vector<int64_t>>();
    one.hash = truth["fnv1a"];
    all.push_back(one);
  }
  return all;
}

int64_t numel_of(const std::vector<int64_t>& shape) {
  int64_t numel = 1;
  for (const int64_t size : shape) numel *= size;
  return numel;
}

// Returns a model file of stage 0. `weights`: shapes by name. `moments`: shapes of exp_avg, in the
// optimizer's order.
std::string stage0_file(const std::vector<std::pair<std::string, std::vector<int64_t>>>& weights,
                        const std::vector<std::vector<int64_t>>& moments) {
  namespace pk = pickled;
  auto tensor = [](const std::string& storage, const std::vector<int64_t>& shape) {
    std::vector<int64_t> strides(shape.size(), 1);
    for (size_t dim = shape.size(); dim-- > 1;) strides[dim - 1] = strides[dim] * shape[dim];
    return pk::tensor(pk::storage("FloatStorage", storage, 64), 0, shape, strides);
  };
  std::vector<std::pair<std::string, std::string>> module;
  std::vector<std::pair<std::string, std::string>> storages = {{"moments", std::string(256, '\0')}};
  for (const auto& [name, shape] : weights) {
    module.emplace_back(name, tensor(name, shape));
    storages.emplace_back(name, std::string(256, '\0'));
  }
  std::vector<std::string> states;
  for (const auto& shape : moments)
    states.push_back(pk::dict({{"step", pk::integer(7)}, {"exp_avg", tensor("moments", shape)}}));
  const std::string groups = pk::list({pk::dict({{"lr", pk::integer(1)}})});
  return torch_archive(
      pk::whole(
          pk::dict({{"module", pk::dict(module)},
                    {"buffer_names", "]"},
                    {"optimizer", pk::dict({{"param_groups", groups}, {"state", pk::numbered(states)}})},
                    {"global_steps", pk::integer(7)}})),
      storages);
}

DeepSpeedCheckpoint read_stage0_file(const TemporaryFolder& folder, const std::string& bytes) {
  fs::create_directories(folder / "x/global_step7");
  folder.write("x/latest", "global_step7");
  folder.write("x/global_step7/mp_rank_00_model_states.pt", bytes);
  return read_deepspeed_checkpoint(local_file_system(), folder / "x");
}

}  // namespace

TEST_CASE("Frozen parameters and buffers of DeepSpeed's checkpoints are read and imported to the bit") {
  for (const std::string name : kCases) {
    INFO(name);
    const TemporaryFolder folder;
    const DeepSpeedCheckpoint source =
        read_deepspeed_checkpoint(local_file_system(), folder_of(name) / "checkpoint");
    const ImportedCheckpoint imported = import_checkpoint(local_file_system(), source, folder / "out", "");
    SavedState saved(local_file_system(), imported.folder);
    const auto all = expected_of(facts_of(name), source.facts.precision);
    CHECK(all.size() == 9);
    const bool leaves_out_frozen = name.starts_with("exclude");
    CHECK(source.parameters.size() == (leaves_out_frozen ? 4 : 5));
    CHECK(source.facts.left_out.empty());
    for (const Expected& one : all) {
      INFO(one.parameter << " " << one.state);
      const bool is_left_out = leaves_out_frozen && one.parameter == "embed.weight";
      CHECK(source.parameters.contains(one.parameter) == !is_left_out);
      if (is_left_out) continue;
      const SourceParameter& found = source.parameters.at(one.parameter);
      CHECK(found.facts.shape == one.shape);
      CHECK(found.facts.trained == one.trained);
      CHECK(found.states.size() == (one.trained ? 3 : 1));
      CHECK(found.states.at(one.state).dtype == one.dtype);
      const int64_t numel = numel_of(one.shape);
      std::vector<std::byte> bytes(static_cast<size_t>(numel * element_bytes(one.dtype)));
      read(found.states.at(one.state), 0, bytes);
      CHECK(hash_of_fixture(bytes) == one.hash);
      std::ranges::fill(bytes, std::byte{0xee});
      CHECK(saved.dtype_of(one.parameter, one.state) == one.dtype);
      saved.read(one.parameter, one.state, 0, numel, bytes);
      CHECK(hash_of_fixture(bytes) == one.hash);
    }
  }
}

TEST_CASE(
    "At stage 0, where files name no frozen parameters, moments are imported only if exactly one assignment "
    "to parameters fits") {
  const TemporaryFolder folder;
  const DeepSpeedCheckpoint clear = read_stage0_file(
      folder, stage0_file({{"a", {2, 3}}, {"b", {3}}, {"c", {2, 3}}, {"d", {4}}}, {{3}, {2, 3}}));
  CHECK(clear.facts.left_out.size() == 1);  // a message that ds_config, which names the optimizer, is missing
  for (const char* name : {"a", "b", "c", "d"}) {
    INFO(name);
    const bool trained = *name == 'b' || *name == 'c';
    CHECK(clear.parameters.at(name).facts.trained == trained);
    CHECK(clear.parameters.at(name).states.size() == (trained ? 2 : 1));
  }
  const DeepSpeedCheckpoint unclear =
      read_stage0_file(folder, stage0_file({{"a", {3}}, {"b", {3}}, {"c", {4}}}, {{3}, {4}}));
  CHECK(unclear.parameters.at("a").states.size() == 1);
  CHECK(unclear.parameters.at("c").states.size() == 1);
  CHECK(unclear.facts.left_out.size() == 2);
  CHECK_THAT(unclear.facts.left_out.back(), Contains("those of 2 parameters, the module has 3"));
  for (const auto& moments :
       std::vector<std::vector<std::vector<int64_t>>>{{{4}, {3}}, {{3}, {3}, {4}}, {{5}}}) {
    const std::string bytes = stage0_file({{"a", {3}}, {"b", {4}}}, moments);
    CHECK_THAT(
        user_error([&] { read_stage0_file(folder, bytes); }),
        Contains("mp_rank_00_model_states.pt") && Contains("no parameter of the module has this shape"));
  }
}

}  // namespace zerorun::testing
