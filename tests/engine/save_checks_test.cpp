// Buffers of unusual dtypes in checkpoints, what save_checkpoint() and load_checkpoint() refuse by name, and
// windows that cannot be saved.
#include <torch/torch.h>

#include <catch2/catch.hpp>
#include <filesystem>
#include <functional>
#include <limits>
#include <string>
#include <utility>

#include "engine/parameter_states.h"
#include "engine/saving/checkpoint_folder.h"
#include "tests/engine/net.h"
#include "tests/engine/partition_support.h"
#include "tests/support/rank_threads.h"
#include "tests/support/temporary_folder.h"

namespace zerorun::testing {
namespace {

using Catch::Matchers::Contains;

struct BufferNetImpl : torch::nn::Module {
  explicit BufferNetImpl(bool filled = true) {
    weight = register_parameter("weight", values({3, 4}, 1));
    const auto buffer = [&](const char* name, const at::Tensor& tensor) {
      register_buffer(name,
                      filled ? tensor : torch::zeros(tensor.sizes(), at::kFloat).to(tensor.scalar_type()));
    };
    buffer("freqs_cis", torch::complex(values({5}, 2), values({5}, 3)));
    buffer("e4m3", values({6}, 4).to(at::kFloat8_e4m3fn));
    buffer("e5m2", values({6}, 5).to(at::kFloat8_e5m2));
    buffer("u16", torch::arange(7).to(at::kUInt16));
    buffer("u32", torch::arange(7).to(at::kUInt32));
    buffer("u64", torch::arange(7).to(at::kUInt64));
    buffer("bytes", torch::arange(9).to(at::kByte));
  }
  at::Tensor loss(int step) { return weight.matmul(values({4, 2}, 10 + step)).square().mean(); }

  at::Tensor weight;
};
TORCH_MODULE(BufferNet);

std::string config_of(int stage, const std::string& more = "") {
  return R"({"train_micro_batch_size_per_gpu": 1, "optimizer": {"type": "Adam", "params": {"lr": 0.1}},
             "zero_optimization": {"stage": )" +
         std::to_string(stage) + R"(, "stage3_param_persistence_threshold": 0})" + more + "}";
}

bool same_bits(const at::Tensor& a, const at::Tensor& b) {
  return a.scalar_type() == b.scalar_type() && a.nbytes() == b.nbytes() &&
         std::memcmp(a.const_data_ptr(), b.const_data_ptr(), a.nbytes()) == 0;
}

struct TwoLayersImpl : torch::nn::Module {
  explicit TwoLayersImpl(bool trains_first = true) {
    first = register_parameter("first", values({4, 4}, 1), trains_first);
    last = register_parameter("last", values({4, 4}, 2));
  }
  at::Tensor loss(int step) {
    return torch::tanh(values({3, 4}, 50 + step).matmul(first)).matmul(last).square().mean();
  }
  at::Tensor first, last;
};
TORCH_MODULE(TwoLayers);

}  // namespace

TEST_CASE("Buffers of every dtype that safetensors has come back to the bit, and into model files") {
  const TemporaryFolder folder;
  CHECK_NOTHROW(run_ranks(2, [&](std::shared_ptr<Communicator> communicator) {
    {
      BufferNet model;
      Engine engine = make_engine(*model, config_of(2), communicator);
      engine.save_checkpoint(folder / "out");
      engine.wait_for_checkpoint();
      engine.save_16bit_model(folder / "model");
    }
    BufferNet model(/*filled=*/false), expected;
    Engine engine = make_engine(*model, config_of(3), communicator);
    engine.load_checkpoint(folder / "out");
    auto wanted = expected->named_buffers();
    for (const auto& item : model->named_buffers())
      expect(same_bits(item.value(), wanted[item.key()]), "buffer " + item.key());
  }));
}

TEST_CASE("What cannot be saved is refused at the call, with its name") {
  const TemporaryFolder folder;
  run_ranks(1, [&](std::shared_ptr<Communicator> communicator) {
    const auto refusal = [&](auto& model) {
      Engine engine = make_engine(*model, config_of(1), communicator);
      return user_error([&] { engine.save_checkpoint(folder / "out"); }) + "\n" +
             user_error([&] { engine.save_16bit_model(folder / "model"); });
    };
    SECTION("a dtype") {
      BufferNet model;
      model->register_buffer("wide", torch::zeros({2}, at::kComplexDouble));
      const std::string text = refusal(model);
      CHECK_THAT(text, Contains("save_checkpoint(): buffer wide cannot be saved: dtype ComplexDouble") &&
                           Contains("save_16bit_model(): buffer wide cannot be saved"));
    }
    SECTION("a frozen parameter's dtype") {
      BufferNet model;
      model->register_parameter("wide", torch::zeros({2}, at::kComplexDouble), false);
      CHECK_THAT(refusal(model), Contains("frozen parameter wide cannot be saved"));
    }
    SECTION("a name that is not UTF-8") {
      BufferNet model;
      model->register_parameter("caf\xe9", torch::zeros({2}), true);
      CHECK_THAT(refusal(model), Contains("is named \"caf\xef\xbf\xbd\"") && Contains("in UTF-8"));
    }
    SECTION("the name of safetensors' own entry") {
      BufferNet model;
      model->register_buffer("__metadata__", torch::zeros({2}));
      CHECK_THAT(refusal(model), Contains("is named \"__metadata__\""));
    }
  });
}

TEST_CASE("A model with a quantized buffer trains; saves and loads refuse the buffer by its name") {
  const TemporaryFolder folder;
  CHECK_NOTHROW(run_ranks(2, [&](std::shared_ptr<Communicator> communicator) {
    at::set_num_threads(1);
    {
      TwoLayers plain;
      Engine engine = make_engine(*plain, config_of(1), communicator);
      engine.save_checkpoint(folder / "out", "plain");
      engine.wait_for_checkpoint();
    }
    TwoLayers model;
    const at::Tensor given =
        torch::quantize_per_tensor(values({5}, communicator->rank()), 0.1, 10, at::kQInt8);
    at::Tensor codes = model->register_buffer("codes", given);
    Engine engine = make_engine(*model, config_of(1), communicator);
    const at::Tensor of_rank_0 = torch::quantize_per_tensor(values({5}, 0), 0.1, 10, at::kQInt8);
    expect(torch::equal(model->named_buffers()["codes"].int_repr(), of_rank_0.int_repr()), "rank 0's values");
    engine.backward(model->loss(0));
    engine.step();
    const std::string why = "buffer codes cannot be saved: a sparse or quantized tensor has no place there";
    expect_throws([&] { engine.save_checkpoint(folder / "out", "quantized"); }, why, "save_checkpoint()");
    expect_throws([&] { engine.save_16bit_model(folder / "model"); }, why, "save_16bit_model()");
    expect_throws([&] { engine.load_checkpoint(folder / "out", "plain"); }, "codes", "a strict load");
    engine.load_checkpoint(folder / "out", "plain", {.strict = false});
    engine.backward(model->loss(1));
    engine.step();
  }));
}

TEST_CASE("A folder without a name, and a path with a 0 byte, are refused by every call") {
  using namespace std::string_literals;
  const TemporaryFolder folder;
  run_ranks(1, [&](std::shared_ptr<Communicator> communicator) {
    BufferNet model;
    Engine engine = make_engine(*model, config_of(1), communicator);
    engine.save_checkpoint(folder / "out", "one");
    const std::pair<std::string, std::function<void(const std::filesystem::path&)>> calls[] = {
        {"save_checkpoint", [&](const auto& path) { engine.save_checkpoint(path); }},
        {"load_checkpoint", [&](const auto& path) { engine.load_checkpoint(path); }},
        {"save_16bit_model", [&](const auto& path) { engine.save_16bit_model(path); }},
        {"reserve_checkpoint_folder",
         [&](const auto& path) { (void)reserve_checkpoint_folder(path, *communicator); }}};
    for (const auto& [name, call] : calls) {
      CHECK_THAT(user_error([&] { call(""); }), Contains(name + "(): the folder's name is empty"));
      CHECK_THAT(user_error([&] { call(folder / "a\0b"s); }),
                 Contains(name + "(): the path ") && Contains("/a?b") && Contains("has a 0 byte"));
    }
    CHECK_FALSE(std::filesystem::exists(folder / "a"));
    for (const bool is_output : {false, true}) {
      BufferNet other;
      InitializeOptions options;
      if (is_output) options.output_folder = folder / "a\0b"s;
      const std::string in_files = R"("offload_optimizer": {"device": "nvme", "nvme_path": "/a\u0000b"}, )";
      std::string config = config_of(1);
      if (!is_output) config.insert(config.find("\"stage\""), in_files);
      CHECK_THAT(user_error([&] { make_engine(*other, config, communicator, options); }),
                 Contains("initialize(): the path ") && Contains("/a?b has a 0 byte"));
    }
    CHECK_THAT(user_error([&] { engine.load_checkpoint(folder / "out", "one\0x"s); }),
               Contains("out/one?x has a 0 byte"));
    CHECK_THAT(user_error([&] { engine.save_16bit_model(folder / "", "m\0.safetensors"s); }),
               Contains("m?.safetensors has a 0 byte"));
  });
}

TEST_CASE("A rate that is not finite is refused at the save") {
  const TemporaryFolder folder;
  run_ranks(1, [&](std::shared_ptr<Communicator> communicator) {
    BufferNet model;
    torch::optim::Adam adam({model->weight}, 0.1);
    InitializeOptions options;
    options.optimizer = &adam;
    Engine engine = make_engine(*model, no_optimizer_config(1), communicator, options);
    for (const double rate : {std::nan(""), std::numeric_limits<double>::infinity()}) {
      adam.param_groups()[0].options().set_lr(rate);
      CHECK_THAT(user_error([&] { engine.save_checkpoint(folder / "out"); }),
                 Contains("\"group 0.lr\" is ") && Contains("set a finite number"));
    }
    adam.param_groups()[0].options().set_lr(0.1);
    engine.save_checkpoint(folder / "out", "", {.client_state = R"({"step": 3})"});
    CHECK_NOTHROW(engine.wait_for_checkpoint());
    CHECK_THAT(user_error([&] {
                 engine.save_checkpoint(folder / "out", "", {.client_state = R"({"a": {"b": 1, "b": 2}})"});
               }),
               Contains("CheckpointOptions::client_state.a has the key \"b\" twice"));
  });
}

TEST_CASE("Ranks that load different checkpoints get an error that names both") {
  const TemporaryFolder folder;
  CHECK_NOTHROW(run_ranks(2, [&](std::shared_ptr<Communicator> communicator) {
    BufferNet model;
    Engine engine = make_engine(*model, config_of(1), communicator);
    engine.save_checkpoint(folder / "out", "one");
    engine.save_checkpoint(folder / "out", "two");
    engine.wait_for_checkpoint();
    const int rank = communicator->rank();
    expect_throws([&] { engine.load_checkpoint(folder / "out", rank == 0 ? "one" : "two"); },
                  "rank 0 \"one\" of " + (folder / "out").string() + "; rank 1 \"two\" of", "tags");
    expect_throws([&] { engine.load_checkpoint(folder / "out", rank == 0 ? "" : "two"); },
                  "rank 0 the latest checkpoint of", "a tag on one rank");
    expect_throws([&] { engine.load_checkpoint(folder / "out", "", {.counters = rank == 0}); },
                  ", without counters", "options");
    engine.load_checkpoint(folder / "out", "one");
  }));
}

TEST_CASE("A parameter that was frozen in the checkpoint and is trained now begins with new moments") {
  const TemporaryFolder folder;
  const int stage = GENERATE(0, 1, 3);
  CAPTURE(stage);
  CHECK_NOTHROW(run_ranks(2, [&](std::shared_ptr<Communicator> communicator) {
    at::Tensor moment;
    {
      TwoLayers model(/*trains_first=*/false);
      Engine engine = make_engine(*model, config_of(stage), communicator);
      for (int step = 0; step < 2; ++step) {
        engine.backward(model->loss(step));
        engine.step();
      }
      moment = ParameterStates(engine).read(model->last, "exp_avg");
      engine.save_checkpoint(folder / "out");
      engine.wait_for_checkpoint();
    }
    TwoLayers model;
    Engine engine = make_engine(*model, config_of(stage), communicator);
    engine.load_checkpoint(folder / "out");
    const ParameterStates states(engine);
    expect_same(states.read(model->last, "exp_avg"), moment, "moments of a parameter that was trained");
    expect_same(states.read(model->first, "exp_avg"), torch::zeros({4, 4}), "moments of the other one");
    engine.backward(model->loss(2));
    engine.step();
  }));
}

TEST_CASE("A window whose gradients are reduced already is not saved as one without gradients") {
  const TemporaryFolder folder;
  const int stage = GENERATE(0, 1, 2, 3);
  CAPTURE(stage);
  CHECK_NOTHROW(run_ranks(2, [&](std::shared_ptr<Communicator> communicator) {
    TwoLayers model;
    Engine engine =
        make_engine(*model, config_of(stage, R"(, "gradient_accumulation_steps": 2)"), communicator);
    engine.set_gradient_accumulation_boundary(true);
    engine.backward(model->loss(0));
    engine.set_gradient_accumulation_boundary(false);
    engine.step();
    const auto save = [&] {
      engine.save_checkpoint(folder / "out");
      engine.wait_for_checkpoint();
    };
    if (stage < 2) {
      expect_throws(save, "reduced already", "a window after its last backward");
    } else {
      save();
    }
    engine.set_gradient_accumulation_boundary(true);
    engine.backward(model->loss(1));
    engine.step();
    save();
  }));
}

}  // namespace zerorun::testing
