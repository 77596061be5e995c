// Tests engine.save_16bit_model(). The file has the trained weights to the bit, at every stage, precision and
// number of ranks. If one rank cannot write, or the call comes between backward() and step(), all ranks get
// an error.
#include <catch2/catch.hpp>
#include <cstring>
#include <map>
#include <mutex>

#include "checkpoint/safetensors_reader.h"
#include "tests/engine/net.h"
#include "tests/support/rank_threads.h"
#include "tests/support/temporary_folder.h"

namespace zerorun::testing {
namespace {

using Catch::Matchers::Contains;
using Bytes = std::map<std::string, std::string>;

std::string config_for(int stage, const std::string& precision) {
  std::string text = sgd_config(stage);
  if (precision != "fp32") text.insert(1, "\"" + precision + R"(": {"enabled": true}, )");
  return text;
}

std::string bytes_of(const at::Tensor& tensor) {
  const at::Tensor whole = tensor.detach().clone().contiguous();
  return {static_cast<const char*>(whole.const_data_ptr()), whole.nbytes()};
}

at::Tensor batch_for(const Engine& engine, int step, int rank) {
  return sample(step, 0, rank)
      .to(engine.config().precision.training == Dtype::fp32   ? at::kFloat
          : engine.config().precision.training == Dtype::bf16 ? at::kBFloat16
                                                              : at::kHalf);
}

// Trains two steps, saves, trains two more steps and saves again under the same name. Returns the parameters
// and buffers that rank 0 reads by operators after the last save.
Bytes train_and_save(const std::filesystem::path& folder, int world, const std::string& config,
                     bool exclude_frozen) {
  Bytes expected;
  run_ranks(world, [&](std::shared_ptr<Communicator> communicator) {
    const int rank = communicator->rank();
    Net model;
    Engine engine = make_engine(*model, config, std::move(communicator));
    for (int step = 0; step < 4; ++step) {
      engine.backward(model->forward(batch_for(engine, step, rank), true).to(at::kFloat).square().mean());
      engine.step();
      if (step % 2 == 1) engine.save_16bit_model(folder, "net.safetensors", exclude_frozen);
    }
    Bytes found;
    for (const auto& parameter : model->named_parameters()) {
      if (!exclude_frozen || parameter->requires_grad()) found[parameter.key()] = bytes_of(*parameter);
    }
    for (const auto& buffer : model->named_buffers()) found[buffer.key()] = bytes_of(*buffer);
    if (rank == 0) expected = found;
  });
  return expected;
}

Bytes read_all(const std::filesystem::path& file) {
  const SafetensorsReader reader(file);
  Bytes found;
  for (const auto& [name, info] : reader.tensors()) {
    const auto bytes = reader.read(name);
    found[name] = std::string(reinterpret_cast<const char*>(bytes.data()), bytes.size());
  }
  return found;
}

}  // namespace

TEST_CASE("A saved model has the trained weights to the bit, at every stage, precision and world size") {
  for (const char* precision : {"fp32", "bf16", "fp16"}) {
    for (const int stage : {0, 1, 2, 3}) {
      for (const int world : {1, 2, 3}) {
        const bool exclude_frozen = (stage + world) % 2 == 0;
        INFO(precision << " at stage " << stage << " on " << world << " ranks");
        const TemporaryFolder folder;
        const Bytes expected =
            train_and_save(folder / "new" / "deep", world, config_for(stage, precision), exclude_frozen);
        CHECK(expected.size() == (exclude_frozen ? 7 : 8));
        CHECK(read_all(folder / "new/deep/net.safetensors") == expected);
        const SafetensorsReader reader(folder / "new/deep/net.safetensors");
        const std::string dtype = precision == std::string("fp32")   ? "F32"
                                  : precision == std::string("bf16") ? "BF16"
                                                                     : "F16";
        CHECK(to_string(reader.tensors().at("first.weight")) == dtype + " [7, 5]");
      }
    }
  }
}

TEST_CASE("A save that fails is an error on all ranks, and training continues") {
  const TemporaryFolder folder;
  folder.write("file", "");
  std::mutex mutex;
  std::multimap<std::string, int> messages;
  run_ranks(2, [&](std::shared_ptr<Communicator> communicator) {
    const int rank = communicator->rank();
    Net model;
    Engine engine = make_engine(*model, sgd_config(3), std::move(communicator));
    auto record = [&](const std::string& directory, const std::string& name) {
      const std::string message = user_error([&] { engine.save_16bit_model(folder / directory, name); });
      std::lock_guard lock(mutex);
      messages.emplace(message, rank);
    };
    record("file", "model.safetensors");
    record("out", "model.bin");
    record("out", "../model.safetensors");
    engine.backward(model->forward(sample(0, 0, rank), true).square().mean());
    record("out", "model.safetensors");
    engine.step();
    engine.save_16bit_model(folder / "out");
  });
  REQUIRE(messages.size() == 8);
  std::string all;
  for (const auto& [message, rank] : messages) all += message + "\n";
  CHECK_THAT(all, !Contains("no error"));
  CHECK_THAT(all, Contains("file/.model.safetensors.partial") && Contains("found \"model.bin\"") &&
                      Contains("found \"../model.safetensors\"") && Contains("save_16bit_model"));
  CHECK(read_all(folder / "out/model.safetensors").size() == 8);
}

}  // namespace zerorun::testing
