// Tests that the ranks of a pipeline end soon when one of them is killed in a phase of a window, or throws.
#include <signal.h>

#include <catch2/catch.hpp>
#include <cstdlib>
#include <stdexcept>
#include <string>
#include <vector>

#include "base/error.h"
#include "comm/connect/rendezvous.h"
#include "tests/comm/rank_processes.h"
#include "tests/engine/pipeline_support.h"

namespace zerorun::testing {
namespace {

using Catch::Matchers::Contains;
using Catch::Matchers::StartsWith;

constexpr int kStages = 3;
enum class Phase { forward, backward, update, between, evaluation, exception };

struct Killing : torch::autograd::Function<Killing> {
  static at::Tensor forward(torch::autograd::AutogradContext*, const at::Tensor& x) { return x * 1; }
  static torch::autograd::variable_list backward(torch::autograd::AutogradContext*,
                                                 torch::autograd::variable_list) {
    raise(SIGKILL);
    return {};
  }
};

// One rank of a job in which rank `victim` is killed in the phase, or throws.
std::string run_rank(int rank, int victim, Phase phase, int port, const char* transport) {
  set_rank_variables(rank, kStages, port, std::chrono::seconds(60));
  setenv("ZERORUN_COMM", transport, 1);
  at::set_num_threads(1);
  Decoder model(kSmall);
  Pipeline pipeline = pipeline_of(model);
  int calls = 0;
  for (PipelineLayer& layer : pipeline.layers) {
    if (layer.name != "embedding" && layer.name != "layers.1" && layer.name != "head") continue;
    layer.forward = [&, forward = layer.forward](const Tensors& inputs) {
      const bool is_it = rank == victim && ++calls == 2;
      const bool evaluates = !model->is_training();
      if (is_it && (phase == Phase::forward || (phase == Phase::evaluation && evaluates))) raise(SIGKILL);
      if (is_it && phase == Phase::exception) throw std::runtime_error("a fault of the program");
      Tensors outputs = forward(inputs);
      if (is_it && phase == Phase::backward) outputs[0] = Killing::apply(outputs[0]);
      return outputs;
    };
  }
  InitializeOptions options;
  options.pipeline = pipeline;
  options.schedule = [=](int64_t step, int) {
    if (rank == victim && phase == Phase::update && step == 1) raise(SIGKILL);
    return ScheduledValues(0.1);
  };
  Engine engine = decoder_engine(*model, decoder_config(2, kSgd, 4), {1, 1, kStages}, connect(),
                                 plan_of(model->options), options);
  const std::vector<MicroBatch> window = window_of(kSmall, 0, 4, 0);
  if (phase == Phase::evaluation) engine.eval_batch(window);
  engine.train_batch(window);
  if (rank == victim && phase == Phase::between) raise(SIGKILL);
  engine.train_batch(window);
  return "went on";
}

}  // namespace

TEST_CASE(
    "A rank that is killed in a phase of a window, or throws: the others end long before the deadline") {
  struct Row {
    Phase phase;
    int victim;
    const char* transport;
  };
  std::vector<Row> rows;
  std::vector<ProcessJob> jobs;
  for (const char* transport : {"shm", "gloo"}) {
    for (const Phase phase : {Phase::forward, Phase::backward, Phase::update, Phase::between,
                              Phase::evaluation, Phase::exception}) {
      const int victim = static_cast<int>(rows.size()) % kStages;
      const int port = free_port();
      rows.push_back({phase, victim, transport});
      jobs.push_back({.count = kStages,
                      .body = [=](int rank) { return run_rank(rank, victim, phase, port, transport); }});
    }
  }
  const auto endings = run_jobs(jobs);
  for (size_t row = 0; row < rows.size(); ++row) {
    CAPTURE(rows[row].transport, static_cast<int>(rows[row].phase), rows[row].victim);
    for (int rank = 0; rank < kStages; ++rank) {
      if (rank == rows[row].victim) continue;
      const Ending& ending = endings[row][rank];
      CAPTURE(rank, ending.text);
      CHECK(ending.seconds < 45);  // the deadline is 60 s
      CHECK_THAT(ending.text, StartsWith("CommError: "));
      // Over Gloo the ranks' store ends with rank 0, so that a rank may know only whom it has waited for.
      const bool has_store = rows[row].victim != 0 || rows[row].transport != std::string("gloo");
      CHECK_THAT(ending.text,
                 Contains(has_store ? "rank " + std::to_string(rows[row].victim) : "lost the connection"));
      if (rows[row].phase != Phase::exception) continue;
      CHECK_THAT(ending.text, Contains("cannot go on: engine.train_batch() failed: a fault of the program"));
      CHECK(ending.seconds < 30);
    }
  }
}

}  // namespace zerorun::testing
