// Runs the oslo_gpt2 sample as a user does, and compares it with a plain LibTorch loop in one process.
#include <torch/torch.h>

#include <catch2/catch.hpp>
#include <nlohmann/json.hpp>

#include "checkpoint/file_system.h"
#include "samples/common/files.h"
#include "samples/gpt2/model_folder.h"
#include "samples/gpt2/weights.h"
#include "samples/tokenizer/padding.h"
#include "samples/tokenizer/tokenizer_files.h"
#include "samples/tokenizer/trainer.h"
#include "tests/samples/programs_support.h"

namespace zerorun::testing {
using namespace samples;
namespace {

using Catch::Matchers::Contains;
using nlohmann::json;

constexpr int64_t kBatch = 4, kLength = 16, kSteps = 20;
const Gpt2Options kShape{.layers = 2, .hidden = 16, .heads = 2, .vocab = 400, .positions = 32};

// Returns lines of README.md of different lengths, so that some are cut off and some are padded.
std::vector<std::string> texts() {
  const std::string text = read_text(ZERORUN_SOURCE_DIR "/README.md");
  std::vector<std::string> lines;
  for (size_t begin = 0; begin < text.size();) {
    const size_t end = std::min(text.find('\n', begin), text.size());
    if (end - begin > 10) lines.push_back(text.substr(begin, end - begin));
    begin = end + 1;
  }
  return lines;
}

struct Files {
  TemporaryFolder folder;
  std::string data = (folder / "squad.json").string(), model = (folder / "init").string();

  Files() {
    TokenizerTrainer trainer;
    json articles = json::array();
    for (const std::string& text : texts()) {
      trainer.add(text);
      const json question = {{"question", "Which?"}, {"answers", {{{"text", "a"}, {"answer_start", 0}}}}};
      articles.push_back({{"title", "x"}, {"paragraphs", {{{"context", text}, {"qas", {question}}}}}});
    }
    folder.write("squad.json", json{{"version", "1.1"}, {"data", articles}}.dump());
    write_model_config(kShape, trainer.train(kShape.vocab), model);
  }

  Outcome train(int ranks, int level, const std::string& flags) const {
    return run(folder, "ZERORUN_DEVICE=cpu " + kBin + "zerorun --num_gpus " + std::to_string(ranks) + " " +
                           kBin + "oslo_gpt2 --data " + data + " --init " + model +
                           " --lr 1e-2 --length 16 --save-every 10 --level " + std::to_string(level) + " " +
                           flags);
  }
};

std::vector<double> losses(const std::string& output) {
  std::vector<double> values;
  for (size_t place = 0; (place = output.find("loss ", place)) != std::string::npos; ++place)
    values.push_back(std::stod(output.substr(place + 5)));
  return values;
}

// Trains the same model on the same texts with torch::optim::Adam and without ZeroRun.
std::vector<double> plain_losses(const Files& files, Gpt2& model) {
  const Tokenizer tokenizer = load_tokenizer(files.model);
  const std::vector<std::string> all = texts();
  torch::optim::Adam optimizer(model->parameters(), torch::optim::AdamOptions(1e-2));
  std::vector<double> values;
  for (int64_t step = 0; step < kSteps; ++step) {
    std::vector<std::vector<int32_t>> rows;
    for (int64_t row = 0; row < kBatch; ++row)
      rows.push_back(tokenizer.encode(all[static_cast<size_t>(step * kBatch + row) % all.size()]));
    const PaddedTokens batch = pad(rows, kLength, 0);
    const at::Tensor tokens = torch::tensor(batch.tokens, torch::kLong).view({batch.rows, batch.length});
    const at::Tensor mask =
        torch::tensor(batch.attention_mask, torch::kLong).view({batch.rows, batch.length});
    const at::Tensor logits = model->forward(tokens).slice(1, 0, -1);
    const at::Tensor nll = torch::nn::functional::cross_entropy(
        logits.reshape({-1, logits.size(2)}), tokens.slice(1, 1).reshape(-1),
        torch::nn::functional::CrossEntropyFuncOptions().reduction(torch::kNone));
    const at::Tensor counted = mask.slice(1, 1).reshape(-1).to(torch::kFloat);
    const at::Tensor loss = (nll * counted).sum() / counted.sum();
    optimizer.zero_grad();
    loss.backward();
    optimizer.step();
    values.push_back(loss.item<double>());
  }
  return values;
}

void check_close(const std::vector<double>& found, const std::vector<double>& expected) {
  REQUIRE(found.size() == expected.size());
  for (size_t step = 0; step < found.size(); ++step)
    CHECK(std::abs(found[step] - expected[step]) <= 2e-6 * expected[step]);
}

}  // namespace

TEST_CASE("oslo_gpt2: losses of a plain loop at all levels and world sizes, also resumed elsewhere") {
  const Files files;
  Gpt2 plain(kShape);
  const std::vector<double> expected = plain_losses(files, plain);
  CHECK(expected.back() < expected.front() - 1);
  for (const int ranks : {1, 2, 4}) {
    std::string first_output;
    for (const int level : {1, 2, 3}) {
      INFO(ranks << " ranks, level " << level);
      const std::string save =
          " --save " + (files.folder / ("saved" + std::to_string(ranks) + std::to_string(level))).string();
      const Outcome whole = files.train(ranks, level, "--steps 20" + save);
      INFO(whole.err);
      REQUIRE(whole.exit_code == 0);
      check_close(losses(whole.out), expected);
      if (first_output.empty()) first_output = whole.out;
      CHECK(whole.out == first_output);
    }
  }

  // A run that is resumed after step 10 has the same bits on the same number of ranks, and close values on
  // another world size.
  const std::string save = " --save " + (files.folder / "parts").string();
  const Outcome first = files.train(2, 2, "--steps 10" + save);
  REQUIRE(first.exit_code == 0);
  std::filesystem::copy(files.folder / "parts", files.folder / "copy",
                        std::filesystem::copy_options::recursive);
  const Outcome second = files.train(2, 2, "--steps 20 --resume" + save);
  REQUIRE(second.exit_code == 0);
  CHECK(first.out + second.out == files.train(2, 2, "--steps 20").out);
  const Outcome elsewhere =
      files.train(4, 3, "--steps 20 --resume --save " + (files.folder / "copy").string());
  REQUIRE(elsewhere.exit_code == 0);
  check_close(losses(elsewhere.out), {expected.begin() + 10, expected.end()});

  // The saved folder has the trained model and its tokenizer.
  Gpt2 trained(read_model_config(files.folder / "parts/model"));
  load_weights(*trained, files.folder / "parts/model");
  const auto values = trained->parameters(), others = plain->parameters();
  for (size_t i = 0; i < values.size(); ++i) CHECK(at::allclose(values[i], others[i], 1e-3, 1e-3));
  CHECK(load_tokenizer(files.folder / "parts/model").hash() == load_tokenizer(files.model).hash());
}

TEST_CASE("oslo_gpt2: a user's mistake is one message") {
  const Files files;
  const std::string other_data = files.folder.write("other.json", R"({"context": 5})").string();
  const std::string lines =
      files.folder.write("lines.jsonl", "{\"context\": \"one\"}\n{\"context\": \"tw").string();
  const std::string config = read_text(files.model + "/config.json");
  const auto config_with = [&](const char* key, const json& value) {
    json changed = json::parse(config);
    changed[key] = value;
    files.folder.write("init/config.json", changed.dump());
    const Outcome outcome = files.train(1, 1, "--steps 1");
    files.folder.write("init/config.json", config);
    CHECK(outcome.exit_code == 2);
    return outcome.err;
  };
  const std::pair<std::string, std::string> mistakes[] = {
      {"--data " + other_data, "other.json, document 1: \"context\" is a number, expected a string"},
      {"--data " + lines, "lines.jsonl, document 2: byte"},
      {"--data " + (files.folder / "").string(), "is a folder"},
      {"--data " + files.folder.write("empty", "").string(), "empty: the file is empty"},
      {"--field answer", "no object has the field \"answer\" (--field)"},
      {"--length 64", "--length 64: the model has 32 positions"},
      {"--init " + (files.folder / "none").string(), "none: is no folder"},
      {"--level 4", "--level"},
      {"--resume --save " + (files.folder / "nowhere").string(), "nowhere: there is no such folder"},
  };
  for (const auto& [flags, expected] : mistakes) {
    INFO(flags);
    std::string command = kBin + "oslo_gpt2 --steps 1 " + flags;
    const std::pair<std::string, std::string> others[] = {
        {" --data ", files.data}, {" --init ", files.model}, {" --length ", "16"}};
    for (const auto& [flag, value] : others) {
      if (command.find(flag) == std::string::npos) command += flag + value;
    }
    const Outcome outcome = run(files.folder, command);
    CHECK(outcome.exit_code == 2);
    CHECK_THAT(outcome.err, Contains(expected));
    CHECK(count(outcome.err, "error: ") == 1);
  }
  {
    const auto other_job = checkpoint::local_file_system().lock_folder(files.folder / "");
    const Outcome outcome = files.train(1, 1, "--steps 1 --save " + (files.folder / "").string());
    CHECK(outcome.exit_code == 2);
    CHECK_THAT(outcome.err, Contains("saves checkpoints into this folder"));
    CHECK(outcome.out.empty());  // no step was taken
  }
  CHECK_THAT(files.train(4, 1, "--batch 6").err, Contains("--batch 6 is not a multiple of the 4 ranks"));
  CHECK_THAT(config_with("model_type", "llama"),
             Contains("config.json: model_type is \"llama\", expected \"gpt2\""));
  CHECK_THAT(config_with("activation_function", "relu"), Contains("activation_function is \"relu\""));
  CHECK_THAT(config_with("tie_word_embeddings", false), Contains("tie_word_embeddings is false"));
  CHECK_THAT(config_with("n_layer", 0), Contains("n_layer is 0"));
  CHECK_THAT(config_with("n_head", 3), Contains("n_head 3 does not divide n_embd 16"));
  CHECK_THAT(config_with("vocab_size", 300),
             Contains("vocab_size 300 of config.json is less than the 400 tokens"));
}

}  // namespace zerorun::testing
