// Runs the sample programs as a user does. Tests exit codes, messages, and printed and written output.
#include <unistd.h>

#include <catch2/catch.hpp>
#include <cmath>
#include <cstdlib>
#include <iterator>
#include <map>
#include <regex>

#include "checkpoint/file_system.h"
#include "tests/samples/programs_support.h"
#include "tests/support/settings.h"

namespace zerorun::testing {
using namespace checkpoint;

using Catch::Matchers::Contains;

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
      {config + "--save-every 2", "--save-every, --keep-last and --save-on-sigterm need --save-dir"},
      {config + data + "--steps 1 --resume " + (folder / "nowhere").string(),
       "nowhere: there is no such folder"},
      {config + data + "--steps 1 --save-dir " + none, "none/.zerorun-lock cannot be made: Not a directory"},
      {config + "--vocab 255", "--vocab 255: expected 256"},
      {config + "--seq 1", "--seq 1: expected 2"},
      {config + "--hidden 64 --heads 5", "--heads 5 does not divide --hidden 64"},
      {config + "--data " + none, "none: the file is empty"},
      {config + "--data " + none + "x", "nonex: cannot be opened: No such file"},
      {config + "--save " + none + "/x/y", "--save"},
      {config + "--save weights.bin",
       "--save weights.bin: expected a folder, or the name of a .safetensors file"},
      {config + "--csv " + (folder / "").string(), "is a directory"},
      {config + "--batch 0", "--batch"},
      {config + "--lr -1", "--lr"},
      {config + data + "--seq 1001", "0 samples (1000 tokens in windows of --seq 1001)"},
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

TEST_CASE("a mistake that all ranks share is reported once, and the launcher's exit code is 2") {
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

TEST_CASE("two ranks train, and only rank 0 prints") {
  const TemporaryFolder folder;
  const std::string csv = folder / "log.csv";
  const std::string command = kBin + "zerorun --num_gpus 2 " + kBin + "gpt2 --deepspeed --deepspeed_config " +
                              write_config(folder, 2, 2) + " --local_rank=0 --data " + write_text(folder) +
                              kTiny + "--steps 5 --csv " + csv + " --generate 20 --prompt abc";
  const Outcome outcome = run(folder, command);
  INFO(outcome.err);
  REQUIRE(outcome.exit_code == 0);
  for (const char* once : {"ZeRO stage 2 on 2 ranks", "1 file, 1,000 tokens, 62 samples", "ZeRO formula",
                           "step 2/5", "step 4/5", "5 steps in", "text: abc"}) {
    INFO(once);
    CHECK(count(outcome.out, once) == 1);
  }
  CHECK(count(outcome.out, "step 3/5") == 0);
  const std::regex line(
      R"(step 4/5  loss [0-9.]+  ETA 0:0\d  lr 1\.000e-02  norm [0-9.]+  \d+ tokens/s  [0-9.]+ GFLOP/s \(\d+ %\)  \d+ MiB  \d+ % waiting)");
  CHECK(std::regex_search(outcome.out, line));
  CHECK(count(outcome.out, "\r") == 0);

  const std::string written = read_file(csv);
  const auto rows = read_csv(csv);
  CHECK(column(rows, "step") == std::vector<double>{0, 1, 2, 3, 4});
  CHECK(column(rows, "lr") == std::vector<double>(5, 0.01));
  CHECK(column(rows, "loss_scale") == std::vector<double>(5, 1));
  CHECK(column(rows, "skipped") == std::vector<double>(5, 0));
  CHECK(rows.front().at("loss") == Approx(std::log(256.0)).epsilon(0.02));  // of the untrained model
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
  REQUIRE(alone.size() == 12);  // 12 steps of 6 samples reach the second epoch, since an epoch has 62 samples
  for (const std::vector<double>& shared : {losses(2, 3, 1), losses(3, 2, 1), losses(1, 2, 3)}) {
    for (size_t step = 0; step < alone.size(); ++step)
      CHECK(shared[step] == Approx(alone[step]).epsilon(1e-5));
  }
}

TEST_CASE("two launchers, one for each host, give the bits of one launcher") {
  const TemporaryFolder folder;
  const std::string config = write_config(folder, 2, 2, R"({"stage": 3})"), text = write_text(folder);
  const auto train = [&](const std::string& launcher, const std::string& csv) {
    return "timeout 120 " + kBin + "zerorun --comm " + launcher + " " + kBin + "gpt2 --deepspeed " + config +
           " --data " + text + kTiny + "--steps 5 --generate 10 --csv " + csv + " --cache " +
           (folder / "tokens").string();
  };
  for (std::string comm : {"shm", "gloo"}) {
    CAPTURE(comm);
    const std::string alone = folder / "alone.csv", together = folder / "together.csv";
    const Outcome one = run(folder, train(comm + " --num_gpus 4", alone));
    INFO(one.err);
    REQUIRE(one.exit_code == 0);
    const std::string node =
        comm +
        " --num_nodes 2 --num_gpus 2 --master_addr 127.0.0.1 --master_port 23458 --no_ssh --node_rank ";
    const Outcome two = run(folder, "sh -c '" + train(node + "1", folder / "unused.csv") + " & " +
                                        train(node + "0", together) + " && wait $!'");
    INFO(two.err);
    REQUIRE(two.exit_code == 0);
    CHECK(read_file(together) == read_file(alone));
    CHECK(two.out.substr(two.out.find("text: ")) == one.out.substr(one.out.find("text: ")));
  }
}

TEST_CASE("only the config names the stage; losses, weights and text are the same at each stage") {
  const TemporaryFolder folder;
  const std::string csv = folder / "log.csv", saved = folder / "saved.safetensors";
  auto outputs = [&](const std::string& zero, const std::string& comm = "auto") {
    const Outcome outcome =
        run(folder, kBin + "zerorun --num_gpus 2 --comm " + comm + " " + kBin + "gpt2 --deepspeed " +
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
  CHECK_THAT(read_file(folder / "stdout"), Contains(" reduced\ntext: "));  // nothing is gathered or released
  CHECK(outputs(R"({"stage": 0})", "gloo") == whole);
  CHECK(outputs(R"({"stage": 2})", "gloo") == whole);
  CHECK(outputs(tight, "gloo") == whole);
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

TEST_CASE("a resumed run continues with the same losses and weights, at other stages and ranks too") {
  const TemporaryFolder folder;
  const std::string text = write_text(folder);
  auto train = [&](int ranks, int stage, const std::string& flags) {
    const std::string config =
        write_config(folder, 4 / ranks, 1, R"({"stage": )" + std::to_string(stage) + "}");
    const Outcome outcome =
        run(folder, kBin + "zerorun --num_gpus " + std::to_string(ranks) + " " + kBin + "gpt2" + kTiny +
                        "--generate 0 --data " + text + " --deepspeed " + config + " " + flags);
    INFO(outcome.err);
    CHECK(outcome.exit_code == 0);
    return outcome.out;
  };
  const std::string saves = folder / "saves";
  const std::string straight = folder / "straight.csv";
  const std::string weights = folder / "weights.safetensors";
  const std::string resumed_weights = folder / "resumed.safetensors";
  train(2, 1, "--steps 6 --csv " + straight + " --save-dir " + saves + " --save-every 3 --save " + weights);
  CHECK(read_file(folder / "saves/latest") == "global_step6\n");
  folder.write("saves/latest", "global_step3\n");
  const std::vector<double> losses = column(read_csv(straight), "loss");
  const std::string resumed = folder / "resumed.csv";
  auto resume = [&](int ranks, int stage) {
    const std::string out = train(
        ranks, stage, "--steps 6 --csv " + resumed + " --resume " + saves + " --save " + resumed_weights);
    CHECK_THAT(out, Contains("resumed from " + saves + "/global_step3"));
    return column(read_csv(resumed), "loss");
  };
  const std::vector<double> rest(losses.begin() + 3, losses.end());
  for (const int stage : {0, 1, 2, 3}) {
    CAPTURE(stage);
    CHECK(resume(2, stage) == rest);
    CHECK(read_file(weights) == read_file(resumed_weights));
  }
  const std::vector<double> on_four = resume(4, 3);
  REQUIRE(on_four.size() == rest.size());
  for (size_t i = 0; i < rest.size(); ++i) CHECK(on_four[i] == Approx(rest[i]).epsilon(1e-6));
}

TEST_CASE("gpt2 does not train while another job saves into its --save-dir") {
  const TemporaryFolder folder;
  const std::string csv = folder / "steps.csv";
  const auto other = local_file_system().lock_folder(folder / "");
  const Outcome outcome =
      run(folder, kBin + "gpt2 --layers 1 --hidden 32 --heads 2 --seq 16 --generate 0 --steps 1 --csv " +
                      csv + " --data " + write_text(folder) + " --deepspeed " + write_config(folder, 2, 1) +
                      " --save-dir " + (folder / "").string());
  CHECK(outcome.exit_code == 2);
  CHECK_THAT(outcome.err, Contains("process " + std::to_string(::getpid()) + " of host ") &&
                              Contains("saves checkpoints into this folder"));
  CHECK_FALSE(std::filesystem::exists(csv));
}

TEST_CASE("oneflow_mlp learns with the same losses at every stage, on 1, 2 and 4 ranks") {
  const TemporaryFolder folder;
  for (const int ranks : {1, 2, 4}) {
    std::string first;
    for (const int stage : {0, 1, 2, 3}) {
      if (ranks != 2 && (stage == 1 || stage == 2) && !tries_all()) continue;
      const Outcome outcome = run(folder, kBin + "zerorun --num_gpus " + std::to_string(ranks) + " " + kBin +
                                              "oneflow_mlp " + std::to_string(stage));
      INFO(ranks << " ranks, stage " << stage << ": " << outcome.err);
      CHECK(outcome.exit_code == 0);
      if (first.empty()) first = outcome.out;
      CHECK(outcome.out == first);
    }
    double loss = 0, last_loss = 0;
    int step = 0;
    REQUIRE(std::sscanf(first.c_str(), "step 10: loss %lf,", &loss) == 1);
    REQUIRE(std::sscanf(first.substr(first.rfind("step")).c_str(), "step %d: loss %lf,", &step, &last_loss) ==
            2);
    CHECK(step == 40);
    CHECK(last_loss < 0.9 * loss);
  }
}

TEST_CASE("SIGTERM to the launcher: all ranks save the same step, and the next run resumes from it") {
  const TemporaryFolder folder;
  const std::string config = write_config(folder, 2, 1);
  const std::string gpt2 = kBin + "zerorun --num_gpus 2 --grace 20 " + kBin + "gpt2" + kTiny +
                           "--generate 0 --data " + write_text(folder) + " --deepspeed " + config + " ";
  const std::string csv = folder / "log.csv", saves = folder / "saves";
  const Outcome ended =
      run(folder, "sh -c '" + gpt2 + "--steps 1000000 --csv " + csv + " --save-dir " + saves +
                      " --save-every 5 --keep-last 2 --save-on-sigterm & until [ -e " + saves +
                      "/latest ]; do sleep 0.05; done; sleep 0.2; kill -TERM $!; wait $!'");
  INFO(ended.err);
  const size_t step = read_csv(csv).size();
  CHECK(step >= 5);
  CHECK_THAT(ended.out, Contains("ended by SIGTERM after step " + std::to_string(step) + ", which is saved"));
  CHECK(read_file(folder / "saves/latest") == "global_step" + std::to_string(step) + "\n");
  CHECK(std::distance(std::filesystem::directory_iterator(saves), {}) == 4);  // two tags, `latest`, the lock

  const std::string steps = "--steps " + std::to_string(step + 3) + " --csv ";
  CHECK(run(folder, gpt2 + steps + csv + " --resume " + saves).exit_code == 0);
  const std::string straight = folder / "straight.csv";
  CHECK(run(folder, gpt2 + steps + straight).exit_code == 0);
  CHECK(read_file(csv) == read_file(straight));
}

TEST_CASE("on a terminal there is one live line of at most 100 columns") {
  const TemporaryFolder folder;
  const Outcome outcome =
      run(folder, "ZERORUN_TERMINAL=1 " + kBin + "gpt2 --deepspeed " + write_config(folder, 2, 1) +
                      " --data " + write_text(folder) + kTiny + "--steps 9 --generate 0");
  REQUIRE(outcome.exit_code == 0);
  CHECK_THAT(outcome.out,
             Contains("\rstep 1/9 ") && Contains("\rstep 9/9 ") && Contains("ETA 0:00") && Contains(" MiB"));
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
  CHECK(count(outcome.out, "step 300/300  loss") == 1);
  CHECK(count(outcome.out, "accuracy in the last step: 0.") == 1);
  const auto rows = read_csv(csv);
  REQUIRE(rows.size() == 300);
  CHECK(rows.front().at("loss") == Approx(std::log(10.0)).epsilon(0.2));
  CHECK(rows.back().at("loss") < 0.7);
}

}  // namespace zerorun::testing
