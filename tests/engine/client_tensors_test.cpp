// Tensors of the program in checkpoints: CheckpointOptions::client_tensors.
#include <torch/torch.h>

#include <algorithm>
#include <catch2/catch.hpp>
#include <cstring>
#include <filesystem>
#include <fstream>

#include "checkpoint/comparison.h"
#include "checkpoint/safetensors_reader.h"
#include "checkpoint/verification.h"
#include "tests/engine/net.h"
#include "tests/engine/partition_support.h"
#include "tests/support/rank_threads.h"
#include "tests/support/temporary_folder.h"

namespace zerorun::testing {
namespace {

namespace fs = std::filesystem;
using Catch::Matchers::Contains;
using namespace checkpoint;
using Tensors = std::map<std::string, at::Tensor>;

constexpr const char* kFile = "client_state.safetensors";

// Tensors of all dtypes and several forms. The last one is longer than a block with a checksum.
Tensors some_tensors() {
  Tensors tensors = {{"['ema']['w']", values({5, 3}, 1).t()},
                     {"a", at::scalar_tensor(3, at::kInt)},
                     {"none", torch::zeros({0, 4}, at::kDouble)},
                     {"caf\xc3\xa9 \"1\"\n", torch::conj(torch::complex(values({3}, 2), values({3}, 3)))},
                     {"part", torch::arange(10)[3]},
                     {"long", torch::arange(300'000, at::kInt)}};
  for (const at::ScalarType dtype :
       {at::kDouble, at::kHalf, at::kBFloat16, at::kFloat8_e4m3fn, at::kFloat8_e5m2, at::kLong, at::kShort,
        at::kChar, at::kUInt64, at::kUInt32, at::kUInt16, at::kByte, at::kBool})
    tensors[std::string("of ") + c10::toString(dtype)] = torch::arange(7).to(dtype);
  return tensors;
}

void expect_same_tensors(const Tensors& found, const Tensors& expected) {
  expect(found.size() == expected.size(), "as many tensors");
  for (const auto& [name, tensor] : expected) {
    const at::Tensor& other = found.at(name);
    const at::Tensor plain = tensor.resolve_conj().contiguous();
    expect(other.scalar_type() == tensor.scalar_type() && other.sizes() == tensor.sizes() &&
               other.is_contiguous() &&
               (plain.numel() == 0 ||
                std::memcmp(other.const_data_ptr(), plain.const_data_ptr(), plain.nbytes()) == 0),
           name);
  }
}

Engine make(Net& model, int stage, std::shared_ptr<Communicator> communicator) {
  return make_engine(*model, sgd_config(stage), std::move(communicator));
}

void save(const fs::path& folder, const std::string& tag, const Tensors& tensors) {
  run_ranks(1, [&](std::shared_ptr<Communicator> communicator) {
    Net model;
    Engine engine = make(model, 1, communicator);
    engine.save_checkpoint(folder, tag, {.client_tensors = tensors, .asynchronous = false});
  });
}

}  // namespace

TEST_CASE("Tensors of the program come back to the bit on every rank, as they were at the call") {
  const TemporaryFolder folder;
  for (const int stage : {0, 3}) {
    INFO("stage " << stage);
    CHECK_NOTHROW(run_ranks(2, [&](std::shared_ptr<Communicator> communicator) {
      Net model;
      Engine engine = make(model, stage, communicator);
      Tensors tensors = some_tensors();
      if (communicator->rank() == 1) tensors = {{"of another rank", torch::zeros({3})}};
      engine.save_checkpoint(folder / "out", "", {.client_state = R"({"a": 1})", .client_tensors = tensors});
      for (const auto& [name, tensor] : tensors) tensor.zero_();
      engine.wait_for_checkpoint();
    }));
    for (const int ranks : {1, 2, 3}) {
      CHECK_NOTHROW(run_ranks(ranks, [&](std::shared_ptr<Communicator> communicator) {
        Net model;
        Engine engine = make(model, 3 - stage, communicator);
        const RestoredCheckpoint restored = engine.load_checkpoint(folder / "out");
        expect(restored.client_state == R"({"a":1})", restored.client_state);
        expect_same_tensors(restored.client_tensors, some_tensors());
      }));
    }
  }
  const fs::path tag = folder / "out/global_step0";
  const SafetensorsReader reader(tag / kFile);
  CHECK(reader.tensors().size() == some_tensors().size());
  CHECK(reader.tensors().at("['ema']['w']").shape == std::vector<int64_t>{3, 5});
  for (const auto& [name, info] : reader.tensors()) {
    CAPTURE(name);
    CHECK(reader.offset_of(info) % element_bytes(info.dtype) == 0);
  }
  CHECK(verify_checkpoint(local_file_system(), tag).passed());
  SavedState saved(local_file_system(), tag);
  CHECK(saved.manifest().files.at(kFile).ranges.empty());
}

TEST_CASE("A checkpoint with tensors of the program is removed and replaced as any other") {
  const TemporaryFolder folder;
  run_ranks(1, [&](std::shared_ptr<Communicator> communicator) {
    Net model;
    Engine engine = make(model, 2, communicator);
    const auto tag = [&](int step) { return "global_step" + std::to_string(step); };
    for (int step = 1; step < 4; ++step)
      engine.save_checkpoint(
          folder / "out", tag(step),
          {.client_tensors = {{"t", torch::ones({4})}}, .keep_last = 2, .asynchronous = false});
    CHECK(fs::exists(folder / "out/global_step2" / kFile));
    engine.save_checkpoint(folder / "out", tag(3), {.asynchronous = false});  // first the last save removes
    CHECK(!fs::exists(folder / "out/global_step1"));
    CHECK(!fs::exists(folder / "out/global_step3" / kFile));
    CHECK(engine.load_checkpoint(folder / "out").client_tensors.empty());
  });
}

TEST_CASE("Differences of the program's tensors are found") {
  const TemporaryFolder folder;
  save(folder / "out", "one", {{"t", torch::ones({4})}});
  save(folder / "out", "two", {{"t", torch::zeros({4})}});
  SavedState one(local_file_system(), folder / "out/one"), again(local_file_system(), folder / "out/one");
  SavedState two(local_file_system(), folder / "out/two");
  CHECK(compare_checkpoints(one, again).settings.empty());
  const CheckpointComparison comparison = compare_checkpoints(one, two);
  CHECK(std::ranges::count(comparison.settings, kFile, &SettingDifference::name) == 1);
}

TEST_CASE("Damaged tensors of the program are an error on all ranks, before anything is loaded") {
  const TemporaryFolder folder;
  save(folder / "out", "t", some_tensors());
  const fs::path file = folder / "out/t" / kFile;
  const std::string whole = read_file(file);
  const auto error_of = [&](const std::function<void()>& damage) {
    damage();
    std::string text;
    run_ranks(2, [&](std::shared_ptr<Communicator> communicator) {
      Net model;
      Engine engine = make(model, 3, communicator);
      const std::string error = user_error([&] { engine.load_checkpoint(folder / "out", "t"); });
      if (communicator->rank() == 1) text = error;
    });
    std::ofstream(file, std::ios::binary) << whole;
    return text;
  };
  const auto flip = [&](size_t at) {
    std::string changed = whole;
    changed[at] = static_cast<char>(changed[at] ^ 1);
    std::ofstream(file, std::ios::binary) << changed;
  };
  CHECK(error_of([] {}) == "no error");
  const std::string where = "rank 0: " + file.string();
  CHECK_THAT(error_of([&] { flip(whole.size() - 1); }), Contains(where) && Contains("another checksum"));
  const size_t space = whole.find("\"shape\":[3,5]");
  REQUIRE(space != std::string::npos);
  CHECK_THAT(error_of([&] {  // another shape, valid in itself: only the checksum tells
               std::string changed = whole;
               changed.replace(space, 13, "\"shape\":[5,3]");
               std::ofstream(file, std::ios::binary) << changed;
             }),
             Contains(where) && Contains("another checksum"));
  CHECK_THAT(error_of([&] { std::ofstream(file, std::ios::binary) << whole.substr(0, whole.size() / 2); }),
             Contains(where) && Contains("bytes, and the manifest says"));
  CHECK_THAT(error_of([&] { fs::remove(file); }), Contains("rank 0") && Contains(kFile));
}

TEST_CASE("Tensors that a checkpoint cannot keep are refused at the call, by name") {
  const TemporaryFolder folder;
  const auto refusal = [&](const Tensors& tensors) {
    return user_error([&] { save(folder / "out", "t", tensors); });
  };
  CHECK_THAT(refusal({{"wide", torch::zeros({2}, at::kComplexDouble)}}),
             Contains("client_tensors: \"wide\": dtype ComplexDouble"));
  CHECK_THAT(refusal({{"s", torch::eye(3).to_sparse()}}), Contains("\"s\" is a sparse"));
  CHECK_THAT(refusal({{"m", torch::zeros({2}, at::kMeta)}}),
             Contains("\"m\" is a sparse, quantized or meta"));
  CHECK_THAT(refusal({{"u", at::Tensor()}}), Contains("\"u\" is an undefined tensor"));
  for (const char* name : {"caf\xe9", "__metadata__"})
    CHECK_THAT(refusal({{name, torch::zeros({2})}}), Contains("cannot have this name"));
  CHECK_NOTHROW(run_ranks(2, [&](std::shared_ptr<Communicator> communicator) {
    Net model;
    Engine engine = make(model, 3, communicator);
    expect_throws(
        [&] {
          engine.save_checkpoint(folder / "out", "", {.client_tensors = {{"w", model->first->weight}}});
        },
        "rank 0: CheckpointOptions::client_tensors: \"w\" lies in the memory of an engine", "a save");
  }));
  CHECK(!fs::exists(folder / "out"));
}

}  // namespace zerorun::testing
