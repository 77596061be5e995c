// Runs the gpt2 sample as a user does, with a tokenizer and on several kinds of data.
#include <catch2/catch.hpp>
#include <nlohmann/json.hpp>

#include "samples/common/files.h"
#include "tests/samples/programs_support.h"

namespace zerorun::testing {
using namespace samples;
namespace {

using Catch::Matchers::Contains;
namespace fs = std::filesystem;

struct Trainings {
  TemporaryFolder folder;
  std::string text = (folder / "text").string(), tokenizer = (folder / "tokenizer").string();

  Trainings() {
    folder.write("text", read_text(ZERORUN_SOURCE_DIR "/docs/guide.md"));
    folder.write("other", read_text(ZERORUN_SOURCE_DIR "/README.md"));
    const Outcome learned =
        run(folder, kBin + "train_tokenizer --data " + text + " --vocab 400 --out " + tokenizer);
    REQUIRE(learned.exit_code == 0);
    CHECK_THAT(learned.out, Contains("400 tokens, learned from"));
  }

  // Trains a tiny model on `ranks` ranks with a global batch of 4.
  Outcome train(int ranks, int stage, const std::string& flags) const {
    const std::string config =
        write_config(folder, 4 / ranks, 1, "{\"stage\": " + std::to_string(stage) + "}");
    return run(folder, "ZERORUN_DEVICE=cpu " + kBin + "zerorun --num_gpus " + std::to_string(ranks) + " " +
                           kBin + "gpt2 --deepspeed " + config + " --generate 10 " + flags +
                           (flags.find("--data") == std::string::npos ? " --data " + text : ""));
  }
  std::string path(const std::string& name) const { return (folder / name).string(); }
  std::string tiny() const { return kTiny + "--tokenizer " + tokenizer + " "; }
  std::vector<double> losses(const std::string& csv) const { return column(read_csv(folder / csv), "loss"); }
};

std::string line_with(const std::string& output, const std::string& part) {
  const size_t place = output.find(part);
  return place == std::string::npos ? "" : output.substr(place, output.find('\n', place) - place);
}

}  // namespace

TEST_CASE("gpt2: a saved folder has the model and its tokenizer, and needs no other file") {
  const Trainings trainings;
  const std::string eval = "--eval " + trainings.path("other");
  const Outcome saved = trainings.train(
      2, 3, trainings.tiny() + "--steps 12 --eval-every 5 --save " + trainings.path("model") + " " + eval);
  INFO(saved.err);
  REQUIRE(saved.exit_code == 0);
  CHECK_THAT(saved.out, Contains("400 kinds of token"));
  for (const char* file : {"config.json", "model.safetensors", "tokenizer.json", "vocab.json", "merges.txt"})
    CHECK(fs::exists(trainings.folder / "model" / file));
  CHECK(count(saved.out, "held-out text after step") == 3);

  // This run takes the model's shape and the tokenizer from the folder. Its evaluation must equal the last
  // evaluation of the first run.
  const Outcome loaded = trainings.train(1, 0, "--steps 0 --init " + trainings.path("model") + " " + eval);
  INFO(loaded.err);
  REQUIRE(loaded.exit_code == 0);
  const std::string end = line_with(saved.out, "held-out text after step 12");
  CHECK(end.substr(end.find("loss")) == line_with(loaded.out, "loss "));
  CHECK(line_with(saved.out, "text: ") == line_with(loaded.out, "text: "));
  CHECK_THAT(trainings.train(1, 0, "--layers 3 --init " + trainings.path("model")).err,
             Contains("--layers 3: " + trainings.path("model") + "/config.json says 1"));
  CHECK_THAT(trainings.train(1, 0, "--seq 17 --init " + trainings.path("model")).err,
             Contains("has 16 positions"));
}

TEST_CASE("gpt2: samples are the same at every world size, and continue after a checkpoint") {
  const Trainings trainings;
  for (const int ranks : {1, 2, 4}) {
    const std::string name = std::to_string(ranks);
    const std::string common = trainings.tiny() + "--data " + trainings.path("text") + " " +
                               trainings.path("other") + " --weights 3 1 ";
    REQUIRE(trainings.train(ranks, ranks == 4 ? 3 : ranks, common + "--steps 8 --csv " + trainings.path(name))
                .exit_code == 0);
    REQUIRE(trainings.train(ranks, 2, common + "--steps 5 --save-dir " + trainings.path("saves" + name))
                .exit_code == 0);
    const Outcome resumed = trainings.train(ranks, 2,
                                            common + "--steps 8 --resume " + trainings.path("saves" + name) +
                                                " --csv " + trainings.path(name + "r"));
    INFO(resumed.err);
    REQUIRE(resumed.exit_code == 0);
    const std::vector<double> straight = trainings.losses(name), first = trainings.losses("1"),
                              end = trainings.losses(name + "r");
    CHECK(end == std::vector<double>(straight.begin() + 5, straight.end()));  // equal to the bit
    REQUIRE(straight.size() == 8);
    for (size_t step = 0; step < 8; ++step) CHECK(straight[step] == Approx(first[step]).epsilon(1e-6));
  }

  // A resumed run refuses other data, unless it has --new-data.
  const std::string resume = trainings.tiny() + "--steps 8 --resume " + trainings.path("saves1");
  const Outcome other = trainings.train(1, 2, resume);
  CHECK(other.exit_code == 2);
  CHECK_THAT(other.err, Contains("the checkpoint was trained on other data") && Contains("--new-data"));
  CHECK(trainings.train(1, 2, "--data " + trainings.text + " " + resume + " --new-data").exit_code == 0);
}

TEST_CASE("gpt2: after a restart training goes on from the newest whole checkpoint of its folder") {
  const Trainings trainings;
  REQUIRE(
      trainings.train(2, 2, trainings.tiny() + "--steps 8 --csv " + trainings.path("straight")).exit_code ==
      0);
  const std::string config = write_config(trainings.folder, 2, 1), saves = trainings.path("saves");
  const std::string gpt2 = kBin + "gpt2 --deepspeed " + config + " --generate 0 " + trainings.tiny() +
                           "--data " + trainings.text + " --save-dir " + saves + " --save-every 2 --csv " +
                           trainings.path("log");
  // The first attempt ends after step 5, and its last checkpoint gets damaged.
  const std::string script = trainings.folder.write(
      "job.sh", "[ -z \"$ZERORUN_RESTARTS\" ] || exec " + gpt2 + " --steps 8\n" + gpt2 +
                    " --steps 5\n[ $RANK = 0 ] || exec sleep 60\nfor file in " + saves +
                    "/global_step5/*.safetensors; do : >$file; done\nexit 3\n");
  const Outcome restarted = run(
      trainings.folder, "ZERORUN_DEVICE=cpu " + kBin + "zerorun --num_gpus 2 --max_restarts 2 sh " + script);
  INFO(restarted.err);
  REQUIRE(restarted.exit_code == 0);
  CHECK_THAT(restarted.err, Contains("restart 1 of 2: rank 0 exited with code 3 in step 6") &&
                                Contains("damaged and passed over") && Contains("global_step5/"));
  CHECK_THAT(restarted.out, Contains("resumed from " + saves + "/global_step4"));
  CHECK(trainings.losses("log") == trainings.losses("straight"));  // equal to the bit
}

TEST_CASE("gpt2: after a restart training goes on from the launcher's memory, and no step is missing") {
  const Trainings trainings;
  const std::string steps = trainings.tiny() + "--steps 300 ";
  REQUIRE(trainings.train(2, 2, steps + "--csv " + trainings.path("straight")).exit_code == 0);
  const std::string gpt2 = kBin + "gpt2 --deepspeed " + write_config(trainings.folder, 2, 1) +
                           " --generate 0 " + steps + "--data " + trainings.text + " --save-dir " +
                           trainings.path("saves") + " --csv " + trainings.path("log");
  // The first attempt is killed at some step, long before its only save.
  const std::string script =
      trainings.folder.write("job.sh", "[ -z \"$ZERORUN_RESTARTS\" ] && [ $RANK = 0 ] || exec " + gpt2 +
                                           "\n" + gpt2 + " & \nuntil grep -q ^6, " + trainings.path("log") +
                                           "; do sleep 0.01; done\nkill -9 $!\nexit 3\n");
  const Outcome restarted =
      run(trainings.folder,
          "ZERORUN_DEVICE=cpu " + kBin + "zerorun --num_gpus 2 --max_restarts 1 --hold_every 1 sh " + script);
  INFO(restarted.err);
  REQUIRE(restarted.exit_code == 0);
  CHECK_THAT(restarted.out, Contains("resumed from memory/global_step"));
  CHECK(trainings.losses("log") == trainings.losses("straight"));  // equal to the bit
}

TEST_CASE("gpt2: texts of a JSON field are padded rows") {
  const Trainings trainings;
  std::string lines;
  for (int index = 0; index < 40; ++index)
    lines +=
        nlohmann::json{{"context", std::string(static_cast<size_t>(index), 'x') + " some words"}}.dump() +
        "\n";
  const std::string data = trainings.folder.write("lines.jsonl", lines).string();
  const std::string flags =
      trainings.tiny() + "--field context --steps 4 --csv " + trainings.path("log") + " --data " + data;
  const Outcome outcome = trainings.train(2, 2, flags);
  INFO(outcome.err);
  REQUIRE(outcome.exit_code == 0);
  CHECK_THAT(outcome.out, Contains("640 tokens, 40 samples"));
  CHECK(trainings.losses("log").back() < trainings.losses("log").front());
}

TEST_CASE("gpt2: mistakes about data and tokenizers are one message") {
  const Trainings trainings;
  fs::create_directories(trainings.folder / "empty");
  const std::string latin =
      trainings.folder.write("latin", "caf\xe9 and more text than one sample has").string();
  const std::pair<std::string, std::string> mistakes[] = {
      {trainings.tiny() + "--data " + latin, "latin: byte 3 is not UTF-8"},
      {trainings.tiny() + "--data " + trainings.path(""), "is a folder"},
      {trainings.tiny() + "--weights 1 2", "--weights has 2 numbers, expected one for each of the 1 files"},
      {trainings.tiny() + "--weights 0", "--weights: expected numbers above 0"},
      {trainings.tiny() + "--field answer", "text, document 1: byte"},
      {kTiny + "--tokenizer " + trainings.path("empty"), "has neither tokenizer.json nor vocab.json"},
      {trainings.tiny() + "--vocab 300", "--vocab 300: the tokenizer has 400 tokens"},
      {trainings.tiny() + "--eval-every 3", "--eval-every needs --eval"},
      {trainings.tiny() + "--temperature -1", "--temperature: expected 0 or more"},
      {trainings.tiny() + "--eval " + trainings.path("none"), "none: cannot be opened"},
  };
  for (const auto& [flags, expected] : mistakes) {
    INFO(flags);
    const std::string data = flags.find("--data") == std::string::npos ? " --data " + trainings.text : "";
    const std::string config = write_config(trainings.folder, 2, 1, "{\"stage\": 2}");
    const Outcome outcome =
        run(trainings.folder, "ZERORUN_DEVICE=cpu " + kBin + "zerorun --num_gpus 2 " + kBin +
                                  "gpt2 --deepspeed " + config + " --steps 1 " + flags + data);
    CHECK(outcome.exit_code == 2);
    CHECK_THAT(outcome.err, Contains(expected));
    CHECK(count(outcome.err, "error: ") == 1);
  }
}

TEST_CASE("gpt2 --plan says what the training would take, and starts none") {
  const TemporaryFolder folder;
  const std::string config = write_config(folder, 2, 1);
  const std::string gpt2 =
      kBin + "gpt2 --deepspeed " + config + " --layers 2 --hidden 64 --heads 4 --seq 16 ";
  const auto plan = [&](const std::string& flags) {
    const Outcome outcome = run(folder, gpt2 + flags);
    INFO(outcome.err);
    REQUIRE(outcome.exit_code == 0);
    return nlohmann::json::parse(outcome.out);
  };
  const nlohmann::json one = plan("--plan --world 2 --json --no-others");
  CHECK(one.at("parameters") == 64 * (256 + 16) + 2 * (12 * 64 * 64 + 13 * 64) + 2 * 64);
  const nlohmann::json bytes = one.at("rank").at("bytes");
  CHECK(bytes.at("activations") > 4 * 2 * 16 * 256);  // at least the logits
  CHECK(bytes.at("moments") == Approx(one.at("parameters").get<double>() * 8 / 2).epsilon(0.02));
  const nlohmann::json split = plan("--tensor-parallel 2 --plan --world 2 --json --no-others");
  CHECK(split.at("rank").at("bytes").at("moments") ==
        Approx(bytes.at("moments").get<double>()).epsilon(0.05));
  CHECK(split.at("rank").at("bytes").at("activations") < bytes.at("activations"));
  const Outcome text = run(folder, gpt2 + "--plan --world 4 --hosts 2 --device cuda --memory 1M");
  CHECK(text.exit_code == 1);
  CHECK_THAT(text.out, Contains("4 ranks on GPUs, 2 hosts") && Contains("does not fit into 1.00 MiB"));
  CHECK_THAT(run(folder, gpt2 + "--plan --help").out,
             Contains("The options before --plan are those of a run"));
  CHECK_THAT(run(folder, gpt2 + "--plan --world 3 --hosts 2").err, Contains("do not divide among 2 hosts"));
}

}  // namespace zerorun::testing
