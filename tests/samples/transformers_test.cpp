// Tests that ZeroRun and Python's transformers load each other's models, and that logits and training losses
// agree. Skipped without a Python that has torch, safetensors and transformers (the environment variable
// ZERORUN_PYTHON may name it).
#include <torch/torch.h>

#include <catch2/catch.hpp>
#include <cstdio>
#include <cstdlib>
#include <nlohmann/json.hpp>
#include <sstream>

#include "checkpoint/safetensors_reader.h"
#include "samples/common/files.h"
#include "samples/gpt2/model.h"
#include "samples/gpt2/model_folder.h"
#include "samples/gpt2/weights.h"
#include "tests/support/safetensors_files.h"
#include "tests/support/temporary_folder.h"

namespace zerorun::testing {
using namespace samples;
namespace {

constexpr Gpt2Options kOptions{.layers = 2, .hidden = 64, .heads = 4, .vocab = 256, .positions = 32};

// Returns the command of a Python that has the packages. Ends the program as skipped if there is none.
std::string find_python() {
  const char* const given = std::getenv("ZERORUN_PYTHON");
  for (const std::string& python :
       {std::string(given ? given : ""),
        std::string(ZERORUN_SOURCE_DIR "/.deps/peers/environment/bin/python"), std::string("python3")}) {
    if (python.empty()) continue;
    const std::string command =
        "'" + python + "' -c 'import torch, safetensors, transformers' >/dev/null 2>&1";
    if (std::system(command.c_str()) == 0) return python;
  }
  std::printf("skipped: no Python with torch, safetensors and transformers (name one by ZERORUN_PYTHON)\n");
  std::exit(77);
}

void run(const std::string& command) {
  INFO(command);
  REQUIRE(std::system((command + " >/dev/null").c_str()) == 0);
}

// Runs transformers_check.py in this mode on the folder `root`.
void transformers(const std::string& python, const std::string& mode, const std::string& root) {
  run("'" + python + "' " ZERORUN_SOURCE_DIR "/tests/samples/transformers_check.py " + mode + " " + root +
      " 2>" + root + "log || { cat " + root + "log >&2; false; }");
}

at::Tensor read_tensor(const std::filesystem::path& file, const std::string& name,
                       at::ScalarType dtype = at::kFloat) {
  const SafetensorsReader reader(file);
  std::vector<std::byte> bytes = reader.read(name);
  return at::from_blob(bytes.data(), reader.tensors().at(name).shape, dtype).clone();
}

// Reads the losses from the file that `gpt2 --csv` writes.
std::vector<double> losses_of(const std::filesystem::path& csv) {
  std::istringstream lines(read_text(csv));
  std::vector<double> losses;
  std::string line;
  std::getline(lines, line);  // the header
  while (std::getline(lines, line)) losses.push_back(std::stod(line.substr(line.find(',') + 1)));
  return losses;
}

double difference(const at::Tensor& a, const at::Tensor& b) {
  REQUIRE(a.sizes() == b.sizes());
  return (a - b).abs().max().item<double>();
}

}  // namespace

TEST_CASE("transformers and ZeroRun compute the same logits, each for a model that the other one wrote") {
  const std::string python = find_python();
  const TemporaryFolder folder;
  const std::string root = (folder / "").string();
  at::set_num_threads(1);
  const at::Tensor tokens =
      torch::randint(256, {2, 32}, at::detail::createCPUGenerator(3), torch::TensorOptions(at::kLong));
  write_safetensors(
      folder / "tokens.safetensors",
      {{"tokens",
        {"I64", {2, 32}, {static_cast<const std::byte*>(tokens.const_data_ptr()), tokens.nbytes()}}}});

  folder.write("ds_config.json", R"({"train_micro_batch_size_per_gpu": 2, "bf16": {"enabled": true},
    "optimizer": {"type": "AdamW", "params": {"lr": 0.01}}, "zero_optimization": {"stage": 3}})");
  const std::string bin = ZERORUN_BINARY_DIR "/bin/";
  run(bin + "zerorun --num_gpus 2 --device cpu " + bin + "gpt2 --deepspeed " + root +
      "ds_config.json --layers 2 --hidden 64 --heads 4 --seq 32 --steps 5 --generate 0 --save-dir " + root +
      "saved --data " ZERORUN_SOURCE_DIR "/README.md 2>/dev/null");
  run(bin + "zerorun checkpoint export " + root + "saved " + root + "model --max-shard-size 100KB");
  folder.write("model/config.json",
               R"({"model_type": "gpt2", "architectures": ["GPT2LMHeadModel"], "n_layer": 2,
    "n_embd": 64, "n_head": 4, "vocab_size": 256, "n_positions": 32, "activation_function": "gelu_new",
    "bos_token_id": 0, "eos_token_id": 0, "attn_pdrop": 0.0, "embd_pdrop": 0.0, "resid_pdrop": 0.0})");
  REQUIRE(std::filesystem::exists(folder / "model/model.safetensors.index.json"));
  transformers(python, "logits", root);

  torch::NoGradGuard no_grad;
  Gpt2 model(kOptions);
  const at::Tensor untrained = model->forward(tokens);
  load_weights(*model, folder / "model");
  const at::Tensor trained = read_tensor(folder / "logits.safetensors", "logits");
  CHECK(difference(model->forward(tokens), trained) <= 1e-5);
  CHECK(difference(untrained, trained) > 1e-2);
  for (const char* name : {"back", "back_sharded", "back_bf16"}) {
    INFO(name);
    load_weights(*model, folder / name);
    const std::string expected = name == std::string("back_bf16") ? "back_bf16_logits" : "back_logits";
    CHECK(difference(model->forward(tokens), read_tensor(folder / (expected + ".safetensors"), "logits")) <=
          1e-5);
  }
  CHECK(std::filesystem::exists(folder / "back_sharded/model.safetensors.index.json"));
}

TEST_CASE("Padded texts: logits, five steps and the saved folder are those of transformers") {
  const std::string python = find_python();
  const TemporaryFolder folder;
  const std::string root = (folder / "").string();
  at::set_num_threads(1);
  std::string lines;
  for (int text = 0; text < 24; ++text) {  // texts of 3 to 28 bytes, of which at most 24 bytes are used
    const std::string words = "every text has its own length, and its own words";
    std::string line = std::to_string(text * 37 % 24);
    line.append(words, text, 2 + text * 11 % 25);
    lines += nlohmann::json{{"text", line}}.dump() + "\n";
  }
  folder.write("texts.jsonl", lines);
  transformers(python, "start", root);
  const std::filesystem::path padded = folder / "padded.safetensors";
  const at::Tensor tokens = read_tensor(padded, "tokens", at::kLong);
  const at::Tensor mask = read_tensor(padded, "mask", at::kLong);
  REQUIRE(mask.eq(0).sum().item<int64_t>() > 50);
  // Sets logits at padding to 0, since they have no meaning.
  const auto text_only = [&](const at::Tensor& logits) { return logits * mask.unsqueeze(2); };

  torch::NoGradGuard no_grad;
  Gpt2 model(read_model_config(folder / "start"));
  load_weights(*model, folder / "start");
  CHECK(difference(text_only(model->forward(tokens, mask)), text_only(read_tensor(padded, "start"))) <= 1e-5);

  const at::Tensor losses = read_tensor(padded, "losses");
  const at::Tensor trained = text_only(read_tensor(padded, "trained"));
  REQUIRE(difference(trained, text_only(read_tensor(padded, "start"))) > 1e-2);
  for (const char* stage : {"1", "3"}) {
    INFO("stage " << stage);
    folder.write("ds_config.json", R"({"train_micro_batch_size_per_gpu": 2, "gradient_clipping": 0,
      "optimizer": {"type": "AdamW", "params": {"lr": 0.001, "betas": [0.9, 0.999], "eps": 1e-6, "weight_decay": 0.01}},
      "zero_optimization": {"stage": )" +
                                       std::string(stage) + "}}");
    std::filesystem::remove_all(folder / "trained");
    const std::string bin = ZERORUN_BINARY_DIR "/bin/";
    run(bin + "zerorun --num_gpus 2 --device cpu " + bin + "gpt2 --deepspeed " + root +
        "ds_config.json --init " + root + "start --seq 24 --data " + root +
        "texts.jsonl --field text --sequential --steps 5 --generate 0" + " --csv " + root +
        "losses.csv --save " + root + "trained 2>/dev/null");
    const std::vector<double> found = losses_of(folder / "losses.csv");
    REQUIRE(found.size() == 5);
    for (int step = 0; step < 5; ++step) {
      INFO("step " << step);
      CHECK(found[static_cast<size_t>(step)] == Approx(losses[step].item<double>()).margin(1e-5).epsilon(0));
    }
    transformers(python, "trained", root);
    CHECK(difference(text_only(read_tensor(folder / "trained.safetensors", "logits")), trained) <= 1e-5);
  }
}

}  // namespace zerorun::testing
