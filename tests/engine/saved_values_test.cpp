// Tests that checkpoints have the values of parameters of every layout in memory, at all stages, and that the
// order of the elements in memory and the parameter groups may not be confused when they are loaded.
#include <torch/torch.h>

#include <catch2/catch.hpp>
#include <filesystem>
#include <map>

#include "engine/gathered_parameters.h"
#include "tests/engine/net.h"
#include "tests/support/rank_threads.h"
#include "tests/support/temporary_folder.h"

namespace zerorun::testing {
namespace {

namespace fs = std::filesystem;
using Catch::Matchers::Contains;

// Frozen parameters of several layouts, and a trained one.
struct LayoutNetImpl : torch::nn::Module {
  explicit LayoutNetImpl(bool contiguous = false, bool trains_last = true) {
    const auto laid_out = [&](const at::Tensor& tensor) { return contiguous ? tensor.contiguous() : tensor; };
    register_parameter("weight", values({4, 4}, 1));
    register_parameter("transposed", laid_out(values({6, 4}, 2).t()), false);
    register_parameter("permuted", laid_out(values({2, 3, 5}, 3).permute({2, 0, 1})), false);
    register_parameter("integers", laid_out(torch::arange(12).reshape({3, 4}).t()), false);
    register_parameter("with_gaps", laid_out(values({8, 4}, 4).slice(0, 0, 8, 2)), false);
    register_parameter("channels_last",
                       laid_out(values({2, 3, 4, 4}, 5).contiguous(at::MemoryFormat::ChannelsLast)), false);
    register_parameter("trained_channels_last",
                       laid_out(values({2, 3, 4, 4}, 6).contiguous(at::MemoryFormat::ChannelsLast)),
                       trains_last);
  }
  at::Tensor loss(int step) {
    auto parameters = named_parameters();
    const at::Tensor x = values({4, 3}, static_cast<uint64_t>(100 + step));
    const at::Tensor loss = parameters["weight"].matmul(x).pow(2).mean();
    const at::Tensor last = parameters["trained_channels_last"];
    return last.requires_grad() ? loss + (last - step).pow(2).mean() : loss;
  }
};
TORCH_MODULE(LayoutNet);

std::string adam_config(int stage) {
  return R"({"train_micro_batch_size_per_gpu": 1, "optimizer": {"type": "Adam", "params": {"lr": 0.1}},
             "zero_optimization": {"stage": )" +
         std::to_string(stage) + R"(, "stage3_param_persistence_threshold": 0}})";
}

using Values = std::map<std::string, at::Tensor>;

Values values_of(LayoutNet& model, Engine& engine) {
  Values found;
  GatheredParameters whole(engine, model->parameters());
  for (const auto& item : model->named_parameters())
    found[item.key()] = item.value().detach().contiguous().clone();
  return found;
}

void check_equal(const Values& found, const Values& expected) {
  REQUIRE(found.size() == expected.size());
  for (const auto& [name, tensor] : expected) {
    CAPTURE(name);
    CHECK(at::equal(found.at(name), tensor));
  }
}

Values save(int stage, const fs::path& folder) {
  Values saved;
  run_ranks(2, [&](std::shared_ptr<Communicator> communicator) {
    LayoutNet model;
    Engine engine = make_engine(*model, adam_config(stage), communicator);
    engine.backward(model->loss(0));
    engine.step();
    engine.save_checkpoint(folder, "one");
    Values own = values_of(model, engine);
    engine.wait_for_checkpoint();
    if (communicator->rank() == 0) saved = std::move(own);
  });
  return saved;
}

// Loads into a model whose values are others.
Values load(int stage, const fs::path& folder, bool contiguous, bool trains_last, int steps = 0) {
  Values loaded;
  run_ranks(2, [&](std::shared_ptr<Communicator> communicator) {
    LayoutNet model(contiguous, trains_last);
    {
      const torch::NoGradGuard no_grad;
      for (at::Tensor& parameter : model->parameters()) parameter.zero_();
    }
    Engine engine = make_engine(*model, adam_config(stage), communicator);
    engine.load_checkpoint(folder, "one");
    for (int step = 1; step <= steps; ++step) {
      engine.backward(model->loss(step));
      engine.step();
    }
    Values own = values_of(model, engine);
    if (communicator->rank() == 0) loaded = std::move(own);
  });
  return loaded;
}

}  // namespace

TEST_CASE("Parameters of every layout are saved and loaded, between any two stages and layouts") {
  const TemporaryFolder folder;
  const int stage = GENERATE(0, 1, 2, 3);
  const Values saved = save(stage, folder / "out");
  for (const int reader : {0, 2, 3}) {
    for (const bool contiguous : {false, true}) {
      for (const bool trains_last : {true, false}) {
        CAPTURE(stage, reader, contiguous, trains_last);
        check_equal(load(reader, folder / "out", contiguous, trains_last), saved);
      }
    }
  }
  // The moments are in the right order too.
  check_equal(load(stage, folder / "out", true, true, 2), load(stage, folder / "out", false, true, 2));
}

TEST_CASE("A change of a frozen parameter with gaps is in the next checkpoint") {
  const TemporaryFolder folder;
  const int stage = GENERATE(0, 2, 3);
  CAPTURE(stage);
  at::Tensor expected;
  run_ranks(2, [&](std::shared_ptr<Communicator> communicator) {
    LayoutNet model;
    Engine engine = make_engine(*model, adam_config(stage), communicator);
    engine.save_checkpoint(folder / "out", "before");
    {
      const torch::NoGradGuard no_grad;
      model->named_parameters()["with_gaps"].select(0, 3).add_(5);
    }
    engine.save_checkpoint(folder / "out", "one");
    engine.wait_for_checkpoint();
    if (communicator->rank() == 0) expected = model->named_parameters()["with_gaps"].contiguous().clone();
  });
  CHECK(at::equal(load(1, folder / "out", false, true).at("with_gaps"), expected));
}

TEST_CASE("A checkpoint is not loaded into other parameter groups") {
  const TemporaryFolder folder;
  const auto run = [&](std::vector<std::vector<int>> groups, bool loads, const RestoreOptions& options = {}) {
    run_ranks(1, [&](std::shared_ptr<Communicator> communicator) {
      torch::nn::Sequential model(torch::nn::Linear(3, 3), torch::nn::Linear(3, 3));
      const auto parameters = model->parameters();
      InitializeOptions initialize_options;
      double lr = 1;
      for (const std::vector<int>& group : groups) {
        ParameterGroup& added = initialize_options.parameter_groups.emplace_back();
        added.lr = lr /= 10;
        for (const int index : group) added.parameters.push_back(parameters.at(index));
      }
      Engine engine = make_engine(*model, adam_config(1), communicator, initialize_options);
      if (loads) {
        engine.load_checkpoint(folder / "out", "", options);
      } else {
        engine.save_checkpoint(folder / "out");
        engine.wait_for_checkpoint();
      }
    });
  };
  run({{0, 1}, {2, 3}}, false);
  CHECK_NOTHROW(run({{0, 1}, {2, 3}}, true));
  for (const auto& other :
       std::vector<std::vector<std::vector<int>>>{{{2, 3}, {0, 1}}, {{0, 1, 2, 3}}, {{0}, {1}, {2, 3}}}) {
    CHECK_THAT(user_error([&] { run(other, true); }),
               Contains("other parameter groups") && Contains("is in group") && Contains("counters = false"));
    CHECK_NOTHROW(run(other, true, {.counters = false}));
  }
}

TEST_CASE(
    "Two engines of a process save one tag in turn, and frozen files of another engine are not linked") {
  const TemporaryFolder folder;
  const auto frozen_of = [&](const char* tag) {
    Values loaded;
    run_ranks(1, [&](std::shared_ptr<Communicator> communicator) {
      LayoutNet model;
      Engine engine = make_engine(*model, adam_config(0), communicator);
      engine.load_checkpoint(folder / "out", tag);
      loaded = values_of(model, engine);
    });
    return loaded.at("transposed");
  };
  run_ranks(1, [&](std::shared_ptr<Communicator> communicator) {
    LayoutNet first, second;
    {
      const torch::NoGradGuard no_grad;
      second->named_parameters()["transposed"].add_(5);
    }
    Engine a = make_engine(*first, adam_config(0), communicator);
    Engine b = make_engine(*second, adam_config(0), communicator);
    for (int round = 0; round < 5; ++round) {
      a.save_checkpoint(folder / "out", "last");
      b.save_checkpoint(folder / "out", "last");
      a.wait_for_checkpoint();
      b.wait_for_checkpoint();
    }
    b.save_checkpoint(folder / "out", "last");
    b.wait_for_checkpoint();
    a.save_checkpoint(folder / "out", "mine");
    a.wait_for_checkpoint();
  });
  LayoutNet fresh;
  CHECK(at::equal(frozen_of("mine"), fresh->named_parameters()["transposed"]));
  CHECK(at::equal(frozen_of("last"), fresh->named_parameters()["transposed"] + 5));
}

TEST_CASE(
    "A folder is resolved when save_checkpoint() is called, and may be the checkpoint itself at a load") {
  const TemporaryFolder folder;
  run_ranks(1, [&](std::shared_ptr<Communicator> communicator) {
    LayoutNet model;
    Engine engine = make_engine(*model, adam_config(0), communicator);
    const fs::path before = fs::current_path();
    fs::current_path(folder / "");
    fs::create_directories("elsewhere");
    engine.save_checkpoint("out", "one");
    fs::current_path("elsewhere");
    engine.wait_for_checkpoint();
    fs::current_path(before);
    CHECK(fs::exists(folder / "out/one/manifest.json"));
    CHECK(engine.load_checkpoint(folder / "out/one").path == folder / "out/one");
    CHECK_THAT(user_error([&] { engine.save_checkpoint(""); }), Contains("name is empty"));
    CHECK_THAT(user_error([&] { engine.load_checkpoint(folder / "none"); }), Contains("no such folder"));
    folder.write("out/latest", "global_step4\r\n");
    CHECK_THAT(user_error([&] { engine.load_checkpoint(folder / "out"); }),
               Contains("names global_step4, which is not there") && Contains("name one of these: one"));
  });
}

}  // namespace zerorun::testing
