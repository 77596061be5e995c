// The programs as a user runs them: exit codes, messages, what they print and write.
#include <sys/wait.h>

#include <catch2/catch.hpp>
#include <cstdlib>
#include <map>
#include <sstream>

#include "tests/samples/temporary_folder.h"

namespace zerorun::testing {
namespace {

using Catch::Matchers::Contains;

const std::string kBin = ZERORUN_BINARY_DIR "/bin/";
const std::string kTiny = " --layers 1 --hidden 16 --heads 2 --seq 16 ";

struct Outcome {
  int exit_code;
  std::string out;
  std::string err;
};

Outcome run(const TemporaryFolder& folder, const std::string& command) {
  const std::string out = folder / "stdout", err = folder / "stderr";
  const int status = std::system(("OMP_NUM_THREADS=1 " + command + " >" + out + " 2>" + err).c_str());
  return {WIFEXITED(status) ? WEXITSTATUS(status) : -1, read_file(out), read_file(err)};
}

std::string write_config(const TemporaryFolder& folder, int micro_batch, int accumulation,
                         const std::string& zero = R"({"stage": 2})") {
  return folder.write("ds_config.json", R"({"train_micro_batch_size_per_gpu": )" +
                                            std::to_string(micro_batch) +
                                            R"(, "gradient_accumulation_steps": )" +
                                            std::to_string(accumulation) + R"(, "steps_per_print": 2,
    "optimizer": {"type": "AdamW", "params": {"lr": 0.01}}, "zero_optimization": )" +
                                            zero + "}");
}

// 1,000 bytes: 62 windows of 16.
std::string write_text(const TemporaryFolder& folder) {
  std::string text;
  for (int i = 0; text.size() < 1000; ++i) text += "line " + std::to_string(i * i) + "\n";
  return folder.write("text", text.substr(0, 1000));
}

std::vector<std::map<std::string, double>> read_csv(const std::filesystem::path& file) {
  std::istringstream lines(read_file(file));
  std::string line, field;
  std::getline(lines, line);
  REQUIRE(line == "step,loss,grad_norm,lr,loss_scale,skipped");
  std::vector<std::map<std::string, double>> rows;
  while (std::getline(lines, line)) {
    std::istringstream fields(line);
    auto& row = rows.emplace_back();
    for (const char* column : {"step", "loss", "grad_norm", "lr", "loss_scale", "skipped"}) {
      std::getline(fields, field, ',');
      row[column] = std::stod(field);
    }
  }
  return rows;
}

std::vector<double> column(const std::vector<std::map<std::string, double>>& rows, const std::string& name) {
  std::vector<double> values;
  for (const auto& row : rows) values.push_back(row.at(name));
  return values;
}

int count(const std::string& text, const std::string& part) {
  int found = 0;
  for (size_t at = text.find(part); at != std::string::npos; at = text.find(part, at + 1)) ++found;
  return found;
}

TEST_CASE("a user's mistake is exit code 2 and one message") {
  const TemporaryFolder folder;
  const std::string config = " --deepspeed " + write_config(folder, 2, 1) + " ";
  const std::string data = "--data " + write_text(folder) + " ";
  const std::string none = folder.write("none", "");
  const std::pair<std::string, std::string> mistakes[] = {
      {"", "--deepspeed FILE"},
      {config + "--layerz 3", "--layerz"},
      {config + "--steps many", "--steps"},
      {config + "--layers 0", "--layers 0: expected 1 to"},
      {config + "--steps -1", "--steps -1"},
      {config + "--vocab 255", "--vocab 255: expected 256"},
      {config + "--seq 1", "--seq 1: expected 2"},
      {config + "--hidden 64 --heads 5", "--heads 5 does not divide --hidden 64"},
      {config + "--data " + none, "none: the file is empty"},
      {config + "--data " + none + "x", "nonex: no such file"},
      {config + "--save " + none + "/x/y", "--save"},
      {config + "--csv " + (folder / "").string(), "is a directory"},
      {config + data + "--seq 1000", "too short for one sample"},
      {config + data + "--seq 600", "1 samples"},
      {config + data + kTiny + "--init " + none, "not a safetensors file"},
      {"--deepspeed " + none + "x " + data + kTiny, "nonex"},
  };
  for (const auto& [flags, expected] : mistakes) {
    INFO(flags);
    const Outcome outcome = run(folder, kBin + "gpt2 " + flags);
    CHECK(outcome.exit_code == 2);
    CHECK(outcome.out == "");
    CHECK_THAT(outcome.err, Catch::Matchers::StartsWith("error: ") && Contains(expected));
    CHECK(count(outcome.err, "\n") == 1);
  }
}

TEST_CASE("a mistake that all ranks share is told once, and the launcher's exit code is 2") {
  const TemporaryFolder folder;
  const Outcome outcome =
      run(folder, kBin + "zerorun --num_gpus 2 " + kBin + "gpt2 --deepspeed " + write_config(folder, 40, 1) +
                      " --data " + write_text(folder) + kTiny);
  CHECK(outcome.exit_code == 2);
  CHECK_THAT(outcome.err, Contains("62 samples") && Contains("train_batch_size 80"));
  CHECK(count(outcome.err, "train_batch_size 80") == 1);
}

TEST_CASE("--help lists the flags and succeeds") {
  const TemporaryFolder folder;
  for (const char* program : {"gpt2", "mlp"}) {
    const Outcome outcome = run(folder, kBin + program + " --help");
    CHECK(outcome.exit_code == 0);
    CHECK_THAT(outcome.out, Contains("--deepspeed_config") && Contains("--steps") && Contains("--csv"));
  }
}

TEST_CASE("two ranks train, and rank 0 alone tells about it") {
  const TemporaryFolder folder;
  const std::string csv = folder / "log.csv";
  const std::string command = kBin + "zerorun --num_gpus 2 " + kBin + "gpt2 --deepspeed --deepspeed_config " +
                              write_config(folder, 2, 2) + " --local_rank=0 --data " + write_text(folder) +
                              kTiny + "--steps 5 --csv " + csv + " --generate 20 --prompt abc";
  const Outcome outcome = run(folder, command);
  INFO(outcome.err);
  REQUIRE(outcome.exit_code == 0);
  for (const char* once : {"ZeRO stage 2 on 2 ranks", "62 samples, 7 steps an epoch",
                           "last batch is incomplete (6 of 8 samples) and is dropped", "ZeRO formula",
                           "step 2/5", "step 4/5", "5 steps in", "text: abc"}) {
    INFO(once);
    CHECK(count(outcome.out, once) == 1);
  }
  CHECK(count(outcome.out, "step 3/5") == 0);
  CHECK(count(outcome.out, "\r") == 0);

  const std::string written = read_file(csv);
  const auto rows = read_csv(csv);
  CHECK(column(rows, "step") == std::vector<double>{0, 1, 2, 3, 4});
  CHECK(column(rows, "lr") == std::vector<double>(5, 0.01));
  CHECK(column(rows, "loss_scale") == std::vector<double>(5, 1));
  CHECK(column(rows, "skipped") == std::vector<double>(5, 0));
  CHECK(rows.front().at("loss") == Approx(std::log(256.0)).epsilon(0.02));  // knows nothing yet
  CHECK(rows.back().at("loss") < rows.front().at("loss") - 0.2);

  const Outcome again = run(folder, command);
  CHECK(read_file(csv) == written);
  CHECK(again.out.substr(again.out.find("text: ")) == outcome.out.substr(outcome.out.find("text: ")));
}

TEST_CASE("the batches, and so the losses, do not depend on how many ranks share them") {
  const TemporaryFolder folder;
  const std::string csv = folder / "log.csv";
  const std::string flags = " --data " + write_text(folder) + kTiny + "--steps 12 --generate 0 --csv " + csv;
  auto losses = [&](int ranks, int micro_batch, int accumulation) {
    const Outcome outcome =
        run(folder, kBin + "zerorun --num_gpus " + std::to_string(ranks) + " " + kBin + "gpt2 --deepspeed " +
                        write_config(folder, micro_batch, accumulation) + flags);
    INFO(outcome.err);
    REQUIRE(outcome.exit_code == 0);
    return column(read_csv(csv), "loss");
  };
  const std::vector<double> alone = losses(1, 6, 1);
  REQUIRE(alone.size() == 12);  // 62 windows are 10 batches: it crosses into the second epoch
  for (const std::vector<double>& shared : {losses(2, 3, 1), losses(3, 2, 1), losses(1, 2, 3)}) {
    for (size_t step = 0; step < alone.size(); ++step)
      CHECK(shared[step] == Approx(alone[step]).epsilon(1e-5));
  }
}

TEST_CASE("the stage is the config's alone to say: the same losses, weights and text at each") {
  const TemporaryFolder folder;
  const std::string csv = folder / "log.csv", saved = folder / "saved.safetensors";
  auto outputs = [&](const std::string& zero) {
    const Outcome outcome =
        run(folder, kBin + "zerorun --num_gpus 2 " + kBin + "gpt2 --deepspeed " +
                        write_config(folder, 2, 1, zero) + " --data " + write_text(folder) + kTiny +
                        "--steps 4 --generate 20 --csv " + csv + " --save " + saved);
    INFO(outcome.err);
    REQUIRE(outcome.exit_code == 0);
    return std::vector<std::string>{read_file(csv), read_file(saved),
                                    outcome.out.substr(outcome.out.find("text: "))};
  };
  const std::vector<std::string> whole = outputs(R"({"stage": 0})");
  CHECK(outputs(R"({"stage": 2})") == whole);
  CHECK(outputs(R"({"stage": 3})") == whole);
  const std::string tight = R"({"stage": 3, "stage3_param_persistence_threshold": 0,
                    "stage3_max_live_parameters": 2000, "stage3_prefetch_bucket_size": 1000})";
  CHECK(outputs(tight) == whole);
  CHECK_THAT(read_file(folder / "stdout"),
             Contains(" reduced\npartitioned parameters: at most 0.0") && Contains("; 0 departures"));
}

TEST_CASE("saved weights are a starting point: loading and saving them gives the same file") {
  const TemporaryFolder folder;
  const std::string base = kBin + "gpt2 --deepspeed " + write_config(folder, 2, 1) + " --data " +
                           write_text(folder) + kTiny + "--generate 0 --save ";
  const std::string trained = folder / "trained.safetensors", copy = folder / "copy.safetensors";
  REQUIRE(run(folder, base + trained + " --steps 3").exit_code == 0);
  REQUIRE(run(folder, base + copy + " --steps 0 --seed 99 --init " + trained).exit_code == 0);
  CHECK(read_file(copy) == read_file(trained));
  CHECK(read_file(copy).size() > 1000);
}

TEST_CASE("on a terminal there is one live line of at most 100 columns") {
  const TemporaryFolder folder;
  const Outcome outcome =
      run(folder, "ZERORUN_TERMINAL=1 " + kBin + "gpt2 --deepspeed " + write_config(folder, 2, 1) +
                      " --data " + write_text(folder) + kTiny + "--steps 9 --generate 0");
  REQUIRE(outcome.exit_code == 0);
  CHECK_THAT(outcome.out, Contains("\rstep 1/9 ") && Contains("\rstep 9/9 ") && Contains("ETA 0:00"));
  CHECK(count(outcome.out, "\nstep ") == 0);
  std::istringstream lines(outcome.out);
  for (std::string line; std::getline(lines, line);) {
    std::istringstream parts(line);
    for (std::string part; std::getline(parts, part, '\r');) CHECK(part.size() <= 100);
  }
}

TEST_CASE("mlp learns on two ranks") {
  const TemporaryFolder folder;
  const std::string csv = folder / "log.csv";
  const Outcome outcome = run(folder, kBin + "zerorun --num_gpus 2 " + kBin + "mlp --deepspeed " +
                                          ZERORUN_SOURCE_DIR + "/samples/mlp/ds_config.json --csv " + csv);
  INFO(outcome.err);
  REQUIRE(outcome.exit_code == 0);
  CHECK(count(outcome.out, "step 300 ") == 1);
  const auto rows = read_csv(csv);
  REQUIRE(rows.size() == 300);
  CHECK(rows.front().at("loss") == Approx(std::log(10.0)).epsilon(0.2));
  CHECK(rows.back().at("loss") < 0.7);
}

}  // namespace
}  // namespace zerorun::testing
