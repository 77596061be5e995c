// Tests that checkpoints of DeepSpeed are read and imported with the bits that DeepSpeed reported when it
// saved (FNV-1a hashes in case.json), and that missing or contradictory files are an error.
#include "convert/deepspeed_checkpoint.h"

#include <sys/stat.h>

#include <catch2/catch.hpp>
#include <nlohmann/json.hpp>

#include "base/error.h"
#include "checkpoint/publication.h"
#include "checkpoint/saved_state.h"
#include "checkpoint/state_header.h"
#include "convert/import_checkpoint.h"
#include "tests/convert/deepspeed_cases.h"
#include "tests/convert/fixture_hash.h"
#include "tests/support/temporary_folder.h"

namespace zerorun::testing {
using namespace checkpoint;
using namespace convert;
namespace {

namespace fs = std::filesystem;
using Catch::Matchers::Contains;
using nlohmann::json;

int64_t numel_of(const json& truth) {
  int64_t numel = 1;
  for (const int64_t size : truth["shape"]) numel *= size;
  return numel;
}

// Splits a name such as "exp_avg.transformer.wte.weight" into ZeroRun's name of the state and the parameter's
// name.
std::pair<std::string, std::string> state_and_parameter(const std::string& name, bool is_fp32) {
  const size_t dot = name.find('.');
  const std::string state = name.substr(0, dot);
  return {state == "master" && is_fp32 ? "value" : state, name.substr(dot + 1)};
}

std::string error_of(const fs::path& folder) {
  return user_error([&] { read_deepspeed_checkpoint(local_file_system(), folder); });
}

void copy_folder(const fs::path& from, const fs::path& to) {
  fs::create_directories(to);
  fs::copy(from, to, fs::copy_options::recursive);
}

}  // namespace

TEST_CASE("Weights, master weights and moments of DeepSpeed's checkpoints are read to the bit") {
  const auto cases = deepspeed_cases();
  REQUIRE(cases.size() >= 7);
  for (const DeepSpeedCase& one : cases) {
    INFO(one.name());
    const DeepSpeedCheckpoint source = read_deepspeed_checkpoint(local_file_system(), one.checkpoint());
    const bool is_fp32 = source.facts.precision == "fp32";
    CHECK(is_fp32 == (one.name().find("fp32") != std::string::npos));
    int tensors = 0;
    for (const auto& [name, truth] : one.facts["truth"].items()) {
      const auto [state, parameter] = state_and_parameter(name, is_fp32);
      if (state == "trained") continue;  // rounded master weights: golden/resume_test.cpp checks them
      INFO(name);
      REQUIRE(source.parameters.contains(parameter));
      const SourceParameter& found = source.parameters.at(parameter);
      CHECK(json(found.facts.shape) == truth["shape"]);
      CHECK(found.facts.trained);
      REQUIRE(found.states.contains(state));
      REQUIRE(found.states.at(state).dtype == "F32");
      std::vector<std::byte> bytes(static_cast<size_t>(numel_of(truth) * 4));
      read(found.states.at(state), 0, bytes);
      CHECK(hash_of_fixture(bytes) == truth["fnv1a"].get<std::string>());
      ++tensors;
    }
    CHECK(tensors == 3 * 28);
    CHECK(source.parameters.size() == 28);
  }
}

TEST_CASE("Counters, rates, tied names and client state of DeepSpeed's checkpoints are read") {
  for (const DeepSpeedCase& one : deepspeed_cases()) {
    INFO(one.name());
    const DeepSpeedCheckpoint source = read_deepspeed_checkpoint(local_file_system(), one.checkpoint());
    const json& saved = one.facts["at_save"];
    CHECK(source.facts.version == "0.19.8");
    CHECK(source.facts.optimizer == "AdamW");
    CHECK(source.facts.world_size == one.facts["world_size"]);
    CHECK(source.stage == one.facts["ds_config"]["zero_optimization"]["stage"]);
    CHECK(source.facts.generation == saved["global_steps"]);
    CHECK(std::get<int64_t>(source.facts.numbers.at("steps.global")) == saved["global_steps"]);
    CHECK(std::get<int64_t>(source.facts.numbers.at("steps.skipped")) == saved["skipped_steps"]);
    CHECK(std::get<int64_t>(source.facts.numbers.at("steps.optimizer")) == saved["adam_step"]);
    for (size_t group = 0; group < saved["lr"].size(); ++group) {
      const std::string prefix = "group " + std::to_string(group) + ".";
      CHECK(std::get<double>(source.facts.numbers.at(prefix + "lr")) == saved["lr"][group]);
      CHECK(std::get<double>(source.facts.numbers.at(prefix + "beta1")) == saved["betas"][group][0]);
      CHECK(std::get<double>(source.facts.numbers.at(prefix + "beta2")) == saved["betas"][group][1]);
    }
    CHECK(json::parse(source.facts.client_state) == one.facts["client_state"]);
    const auto& aliases = source.parameters.at("transformer.wte.weight").facts.aliases;
    CHECK(aliases == std::vector<std::string>{"lm_head.weight"});
    CHECK(source.facts.left_out.empty());
  }
}

TEST_CASE("An imported checkpoint has the same bits, also when it is read in pieces") {
  for (const DeepSpeedCase& one : deepspeed_cases()) {
    INFO(one.name());
    const TemporaryFolder folder;
    const DeepSpeedCheckpoint source = read_deepspeed_checkpoint(local_file_system(), one.checkpoint());
    const ImportedCheckpoint imported = import_checkpoint(local_file_system(), source, folder / "out", "");
    CHECK(latest_tag(local_file_system(), folder / "out") == source.tag);
    SavedState saved(local_file_system(), imported.folder);
    CHECK(saved.manifest().generation == source.facts.generation);
    for (const auto& [name, truth] : one.facts["truth"].items()) {
      const auto [state, parameter] = state_and_parameter(name, source.facts.precision == "fp32");
      if (state == "trained") continue;
      const int64_t numel = numel_of(truth);
      std::vector<std::byte> bytes(static_cast<size_t>(numel * 4));
      constexpr int64_t kPiece = 1000;
      for (int64_t begin = 0; begin < numel; begin += kPiece) {
        const int64_t count = std::min(kPiece, numel - begin);
        saved.read(parameter, state, begin, count,
                   std::span(bytes).subspan(static_cast<size_t>(begin * 4), static_cast<size_t>(count * 4)));
      }
      INFO(name);
      CHECK(hash_of_fixture(bytes) == truth["fnv1a"].get<std::string>());
    }
  }
}

TEST_CASE("A missing, wrong or unsupported file of a DeepSpeed checkpoint is refused with its name") {
  const TemporaryFolder folder;
  const fs::path whole = deepspeed_case("fp32_s1_w3").checkpoint();
  const std::string tag = "global_step5";
  const auto optimizer_file = [&](int rank) {
    return "zero_pp_rank_" + std::to_string(rank) + "_mp_rank_00_optim_states.pt";
  };
  copy_folder(whole, folder / "x");
  SECTION("a rank's file is missing") {
    fs::remove(folder / "x" / tag / optimizer_file(1));
    CHECK_THAT(error_of(folder / "x"), Contains("the file of rank 1") && Contains("all nodes"));
  }
  SECTION("the last rank's file is missing") {
    fs::remove(folder / "x" / tag / optimizer_file(2));
    CHECK_THAT(error_of(folder / "x"), Contains("2 files of optimizer states") && Contains("3 ranks"));
  }
  SECTION("the model's file is missing") {
    fs::remove(folder / "x" / tag / "mp_rank_00_model_states.pt");
    CHECK_THAT(error_of(folder / "x"), Contains("expected mp_rank_00_model_states.pt"));
  }
  SECTION("a rank of tensor parallelism") {
    fs::copy(folder / "x" / tag / "mp_rank_00_model_states.pt",
             folder / "x" / tag / "mp_rank_01_model_states.pt");
    CHECK_THAT(error_of(folder / "x"), Contains("mp_rank_01") && Contains("tensor parallelism"));
  }
  SECTION("a file of pipeline parallelism") {
    fs::copy(folder / "x" / tag / "mp_rank_00_model_states.pt",
             folder / "x" / tag / "layer_00-model_states.pt");
    CHECK_THAT(error_of(folder / "x"), Contains("pipeline parallelism"));
  }
  SECTION("a partition of another rank") {
    fs::copy(folder / "x" / tag / optimizer_file(2), folder / "x" / tag / optimizer_file(0),
             fs::copy_options::overwrite_existing);
    CHECK_THAT(error_of(folder / "x"), Contains("rank 2's partition") && Contains("need"));
  }
  SECTION("latest names a folder elsewhere") {
    fs::remove(folder / "x" / "latest");
    folder.write("x/latest", "../y");
    CHECK_THAT(error_of(folder / "x"), Contains("../y"));
  }
  SECTION("latest has white space and a byte order mark around the name") {
    folder.write("x/latest", "\xEF\xBB\xBF " + tag + "\t\r\n");
    CHECK(error_of(folder / "x") == "no error");
  }
  SECTION("latest is a pipe, into which nobody writes") {
    fs::remove(folder / "x" / "latest");
    REQUIRE(::mkfifo((folder / "x/latest").c_str(), 0600) == 0);
    CHECK_THAT(error_of(folder / "x"), Contains("latest cannot be opened: it is no regular file"));
  }
  SECTION("an empty folder") {
    CHECK_THAT(error_of(folder / "none"), Contains("cannot be read"));
  }
}

TEST_CASE(
    "A flipped bit in a DeepSpeed checkpoint's tensors is found by its CRC-32, before anything is "
    "published") {
  const TemporaryFolder folder;
  copy_folder(deepspeed_case("fp32_s3_w3").checkpoint(), folder / "x");
  const fs::path file = folder / "x" / "global_step5" / "zero_pp_rank_1_mp_rank_00_optim_states.pt";
  const auto size = fs::file_size(file);
  std::fstream stream(file, std::ios::in | std::ios::out | std::ios::binary);
  stream.seekg(static_cast<std::streamoff>(size / 2));
  const char byte = static_cast<char>(stream.peek() ^ 4);
  stream.seekp(static_cast<std::streamoff>(size / 2));
  stream.put(byte);
  stream.close();
  const DeepSpeedCheckpoint source = read_deepspeed_checkpoint(local_file_system(), folder / "x");
  const std::string message =
      user_error([&] { import_checkpoint(local_file_system(), source, folder / "out", ""); });
  CHECK_THAT(message, Contains("zero_pp_rank_1") && Contains("CRC-32"));
  CHECK(published_tags(local_file_system(), folder / "out").empty());
  CHECK(local_file_system().list(folder / "out") == std::vector<std::string>{".zerorun-lock"});
}

}  // namespace zerorun::testing
