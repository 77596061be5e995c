// Tests of what a training writes to monitors, and of the log of its collectives.
#include <catch2/catch.hpp>
#include <filesystem>
#include <map>
#include <sstream>
#include <stdexcept>
#include <string>
#include <vector>

#include "base/error.h"
#include "tests/engine/net.h"
#include "tests/monitor/event_file.h"
#include "tests/support/expectations.h"
#include "tests/support/rank_threads.h"
#include "tests/support/stderr_capture.h"
#include "tests/support/temporary_folder.h"

namespace zerorun::testing {
namespace {

namespace fs = std::filesystem;
using Catch::Contains;

std::string with(const std::string& config, const std::string& keys) {
  return config.substr(0, config.size() - 1) + ", " + keys + "}";
}

std::string files_in(const fs::path& folder) {
  const std::string place =
      R"("enabled": true, "output_path": ")" + folder.string() + R"(", "job_name": "job"})";
  return R"("csv_monitor": {)" + place + R"(, "tensorboard": {)" + place;
}

fs::path event_file(const fs::path& folder) {
  for (const auto& entry : fs::directory_iterator(folder)) {
    if (entry.path().filename().string().starts_with("events.out.tfevents.")) return entry.path();
  }
  throw std::runtime_error("no event file in " + folder.string());
}

using Points = std::map<int64_t, double>;  // by samples

Points read_csv(const fs::path& file) {
  std::istringstream lines(read_file(file));
  std::string line;
  std::getline(lines, line);
  Points points;
  while (std::getline(lines, line)) {
    const size_t comma = line.find(',');
    points[std::stoll(line.substr(0, comma))] = std::stod(line.substr(comma + 1));
  }
  return points;
}

// Two micro-steps in each of the steps. Returns the mean loss of each.
std::vector<double> train(Engine& engine, Net& net, int first, int steps,
                          std::vector<double>* norms = nullptr) {
  const int rank = engine.communicator().rank();
  std::vector<double> means;
  for (int step = first; step < first + steps; ++step) {
    double sum = 0;
    for (int micro = 0; micro < 2; ++micro) {
      const at::Tensor loss = net(sample(step, micro, rank), false).square().mean();
      sum += loss.item<double>();
      engine.backward(loss);
      engine.step();
    }
    means.push_back(sum / 2);
    if (norms) norms->push_back(engine.get_global_grad_norm());
  }
  return means;
}

}  // namespace

TEST_CASE("Rank 0 writes loss, rate and norm of each step against samples, and the program's values") {
  for (const int stage : {0, 3}) {
    const TemporaryFolder folder;
    std::vector<double> losses, norms;
    run_ranks(2, [&](std::shared_ptr<Communicator> communicator) {
      Net net;
      Engine engine = make_engine(*net, with(sgd_config(stage, 2), files_in(folder / "out")), communicator);
      std::vector<double> found_norms;
      std::vector<double> found = train(engine, net, 0, 3, &found_norms);
      engine.log("eval/loss", 0.25 + communicator->rank());
      expect(engine.global_samples() == 12, "samples of 3 steps of 2 micro-steps on 2 ranks");
      expect_throws([&] { engine.log("", 1); }, "expected a tag", "an empty tag");
      if (communicator->rank() == 0) losses = found, norms = found_norms;
    });
    const fs::path job = folder / "out/job";
    const Points loss = read_csv(job / "Train_Samples_train_loss.csv");
    REQUIRE(loss.size() == 3);
    for (size_t step = 0; step < 3; ++step) {
      const auto samples = static_cast<int64_t>(4 * (step + 1));
      CHECK(loss.at(samples) == Approx(losses[step]).epsilon(1e-6));
      CHECK(read_csv(job / "Train_Samples_grad_norm.csv").at(samples) == norms[step]);
      CHECK(read_csv(job / "Train_Samples_lr.csv").at(samples) == 0.1);
    }
    CHECK(read_csv(job / "eval_loss.csv") == Points{{12, 0.25}});
    CHECK(!fs::exists(job / "Train_Samples_loss_scale.csv"));

    std::map<std::string, Points> events;
    for (const ReadEvent& event : read_events(read_file(event_file(job))))
      if (!event.tag.empty()) events[event.tag][event.step] = event.value;
    CHECK(events.size() == 4);
    CHECK(events["eval/loss"] == Points{{12, 0.25}});
    for (const auto& [samples, value] : loss)
      CHECK(events["Train/Samples/train_loss"][samples] == static_cast<double>(static_cast<float>(value)));
    // Nobody but rank 0 has written.
    CHECK(std::distance(fs::directory_iterator(job), fs::directory_iterator()) == 5);
  }
}

TEST_CASE("Under fp16 the loss scale is written, and the loss without it") {
  const TemporaryFolder folder;
  double loss = 0;
  run_ranks(1, [&](std::shared_ptr<Communicator> communicator) {
    Net net;
    Engine engine = make_engine(*net,
                                with(sgd_config(2, 2), R"("fp16": {"enabled": true, "loss_scale": 128}, )" +
                                                           files_in(folder / "out")),
                                communicator);
    for (int micro = 0; micro < 2; ++micro) {
      const at::Tensor value = net(sample(0, micro, 0).to(at::kHalf), false).to(at::kFloat).square().mean();
      loss += value.item<double>() / 2;
      engine.backward(value);
      engine.step();
    }
  });
  CHECK(read_csv(folder / "out/job/Train_Samples_loss_scale.csv") == Points{{2, 128}});
  CHECK(read_csv(folder / "out/job/Train_Samples_train_loss.csv").at(2) == Approx(loss).epsilon(1e-6));
}

TEST_CASE("Dropped gradients take their losses along") {
  const TemporaryFolder folder;
  double mean = 0;
  run_ranks(1, [&](std::shared_ptr<Communicator> communicator) {
    Net net;
    Engine engine = make_engine(*net, with(sgd_config(1, 2), files_in(folder / "out")), communicator);
    engine.backward(net(sample(5, 0, 0), false).square().mean() * 1000);
    engine.zero_grad();
    mean = train(engine, net, 0, 1).front();
  });
  CHECK(read_csv(folder / "out/job/Train_Samples_train_loss.csv").at(2) == Approx(mean).epsilon(1e-6));
}

TEST_CASE("A resumed run continues at the samples of its checkpoint") {
  const TemporaryFolder folder;
  for (int run = 0; run < 2; ++run) {
    run_ranks(2, [&](std::shared_ptr<Communicator> communicator) {
      Net net;
      Engine engine = make_engine(*net, with(sgd_config(2, 2), files_in(folder / "out")), communicator);
      if (run == 1) engine.load_checkpoint(folder / "saved");
      train(engine, net, 2 * run, 2);
      if (run == 0) {
        engine.save_checkpoint(folder / "saved");
        engine.wait_for_checkpoint();
      }
    });
  }
  const Points points = read_csv(folder / "out/job/Train_Samples_train_loss.csv");
  REQUIRE(points.size() == 4);
  for (const int64_t samples : {4, 8, 12, 16}) CHECK(points.contains(samples));
}

TEST_CASE("A folder that rank 0 cannot write to is the same error on all ranks") {
  const TemporaryFolder folder;
  const fs::path file = folder.write("file", "");
  run_ranks(2, [&](std::shared_ptr<Communicator> communicator) {
    Net net;
    expect_throws([&] { make_engine(*net, with(sgd_config(1), files_in(file)), communicator); },
                  "csv_monitor.output_path \"" + file.string() + '"', "a folder below a file");
  });
}

TEST_CASE("A monitor of the program gets the events") {
  std::vector<std::string> tags;
  run_ranks(2, [&](std::shared_ptr<Communicator> communicator) {
    Net net;
    InitializeOptions options;
    options.event_sink = [&](const MonitorEvent& event) { tags.push_back(event.tag); };
    Engine engine = make_engine(*net, sgd_config(2, 2), communicator, options);
    train(engine, net, 0, 1);
  });
  CHECK(tags ==
        std::vector<std::string>{"Train/Samples/train_loss", "Train/Samples/lr", "Train/Samples/grad_norm"});
}

TEST_CASE("Training goes on when a monitor of the program throws, and says so once") {
  StderrCapture capture;
  run_ranks(2, [&](std::shared_ptr<Communicator> communicator) {
    Net net;
    InitializeOptions options;
    options.event_sink = [](const MonitorEvent& event) {
      throw std::runtime_error("no room for " + event.tag);
    };
    Engine engine = make_engine(*net, sgd_config(2, 2), communicator, options);
    train(engine, net, 0, 3);
    engine.log("eval/loss", 1);
    expect(engine.global_steps() == 3, "steps");
  });
  const std::string text = capture.text();
  const size_t warning = text.find("InitializeOptions::event_sink: no room for Train/Samples/train_loss");
  CHECK(warning != std::string::npos);
  CHECK(text.find("no room for", warning + 60) == std::string::npos);
}

TEST_CASE("comms_logger counts what the communicator counts, and logs a table at the end") {
  std::string table;
  double reduced = 0;
  StderrCapture capture;
  run_ranks(2, [&](std::shared_ptr<Communicator> communicator) {
    Net net;
    Engine engine = make_engine(
        *net, with(sgd_config(2, 2), R"("comms_logger": {"enabled": true, "verbose": true, "debug": true})"),
        communicator);
    communicator->volume().reset();
    train(engine, net, 0, 3);
    const std::string found = engine.log_communication();
    expect(found.empty() == (communicator->rank() != 0), "the table of rank 0 only");
    if (communicator->rank() != 0) return;
    table = found;
    reduced = communicator->volume().elements(Collective::reduce_scatter);
  });
  const std::string log = capture.text();
  double bytes = 0;
  std::istringstream rows(table);
  for (std::string row; std::getline(rows, row);) {
    std::istringstream words(row);
    std::string kind;
    double ranks = 0, size = 0, count = 0, time = -1;
    words >> kind >> ranks >> size >> count >> time;
    if (kind != "reduce_scatter") continue;
    CHECK(ranks == 2);
    CHECK(time >= 0);
    bytes += size * count;
  }
  CHECK(bytes > 0);
  CHECK(bytes / 2 / 4 == reduced);  // half of the bytes is for the other rank, in fp32
  CHECK_THAT(log, Contains("collectives of rank 0 in this run") &&
                      Contains("reduce_scatter of gradients of bucket"));
}

TEST_CASE("comms_logger records the kinds in prof_ops") {
  run_ranks(1, [&](std::shared_ptr<Communicator> communicator) {
    Net net;
    Engine engine = make_engine(
        *net,
        with(sgd_config(0, 2),
             R"("comms_logger": {"enabled": true, "prof_all": false, "prof_ops": ["all_reduce"]})"),
        communicator);
    train(engine, net, 0, 1);
    const std::string table = engine.log_communication();
    expect(table.find("all_reduce") != std::string::npos, "all_reduce is recorded");
    expect(table.find("barrier") == std::string::npos, "others are not");
    expect(table.find("broadcast") == std::string::npos, "others are not");
  });
}

TEST_CASE("memory_breakdown and dump_state log what they say, and no secret") {
  StderrCapture capture;
  run_ranks(2, [&](std::shared_ptr<Communicator> communicator) {
    Net net;
    Engine engine = make_engine(*net, with(sgd_config(1, 2), R"("memory_breakdown": true, "dump_state": true,
                                     "comet": {"enabled": true, "api_key": "hidden-word"})"),
                                communicator);
    train(engine, net, 0, 2);
  });
  const std::string log = capture.text();
  CHECK_THAT(log, Contains("step 1: bytes of rank 0: parameters ") && Contains("step 2: bytes of rank 0: "));
  CHECK_THAT(log, Contains("settings of the config\n{") && Contains("\"train_batch_size\": 4"));
  CHECK_THAT(log, Contains("\"api_key\": \"(secret)\"") && !Contains("hidden-word"));
  CHECK_THAT(log, Contains("comet.enabled: only Python programs write to this monitor"));
}

}  // namespace zerorun::testing
