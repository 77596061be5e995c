// Tests programs that fork in the middle of training, as data loaders do. A child that ends, with or without
// destructors, must not affect its parent.
#include <sys/wait.h>
#include <unistd.h>

#include <catch2/catch.hpp>
#include <chrono>
#include <cstdlib>
#include <functional>
#include <sstream>
#include <thread>

#include "comm/connect/rendezvous.h"
#include "engine/gathered_parameters.h"
#include "tests/comm/rank_processes.h"
#include "tests/engine/net.h"
#include "tests/zero/rank_state.h"
#include "zero/residency.h"

namespace zerorun::testing {
namespace {

// All objects of a rank. A forked child has a copy of each, as it has of the globals of a program.
struct Job {
  std::shared_ptr<Communicator> communicator;
  Net model;
  std::optional<torch::optim::Adam> optimizer;
  std::optional<Engine> engine;
};

// Forks a child that tries to use its copies of the parent's communicator, `under_way` and model, and then
// destroys these copies. Returns the child's wait status.
int fork_and_destroy(std::optional<Job>& job, std::unique_ptr<Work> under_way = {}) {
  const pid_t child = fork();
  if (child == 0) {
    int status = 0;
    const auto refused = [](const std::function<void()>& call) {
      try {
        call();
      } catch (const std::exception& error) {
        return std::string(error.what()).find("was forked from rank") != std::string::npos;
      }
      return false;
    };
    if (!refused([&] { job->communicator->barrier("a child of one rank")->wait(); })) status = 3;
    if (under_way && !refused([&] { under_way->wait(); })) status = 4;
    // At some stages forward waits for collectives that the parent has started, and throws. At the others it
    // works. Both are right here.
    refused([&] { job->model->forward(sample(0, 0, 0), true); });
    under_way.reset();
    job.reset();
    _exit(status);
  }
  int status = -1;
  waitpid(child, &status, 0);
  if (under_way) under_way->wait();
  return status;
}

std::string train(int rank, int world, int port, const char* comm, int stage, bool forks) {
  at::set_num_threads(1);
  set_rank_variables(rank, world, port, std::chrono::seconds(60));
  setenv("ZERORUN_COMM", comm, 1);
  std::optional<Job> job(std::in_place);
  job->communicator = connect();
  job->optimizer.emplace(job->model->parameters(), 0.1);
  InitializeOptions options;
  options.optimizer = &*job->optimizer;
  std::string config = no_optimizer_config(stage);
  config.insert(1, R"("gradient_accumulation_steps": 2, )");
  job->engine.emplace(make_engine(*job->model, config, job->communicator, options));
  std::ostringstream text;
  text << std::hexfloat;
  for (int step = 0; step < 3; ++step) {
    for (int micro = 0; micro < 2; ++micro) {
      // Forks in three states: after a step, with accumulated gradients, and while the all-gather of updated
      // parameters may be in flight.
      if (forks) text << (fork_and_destroy(job) == 0 ? "" : "the child failed ");
      job->engine->backward(job->model->forward(sample(step, micro, rank), true).square().sum());
      if (forks) text << (fork_and_destroy(job) == 0 ? "" : "the child failed ");
      if (micro == 0) {
        GatheredParameters scope(*job->engine, job->model->parameters());
      }
      if (forks) text << (fork_and_destroy(job) == 0 ? "" : "the child failed ");
      // If the child received data of this all-reduce, or completed a part of it, the all-reduce would fail
      // or hang in the parent.
      at::Tensor sum = torch::full({5000}, 1.0 + rank);
      auto work = job->communicator->all_reduce(sum, "a sum of the program");
      if (rank == 1) std::this_thread::sleep_for(std::chrono::milliseconds(20));
      if (forks) {
        text << (fork_and_destroy(job, std::move(work)) == 0 ? "" : "the child failed ");
      } else {
        work->wait();
      }
      text << sum.mean().item<float>() << ' ';
      job->engine->step();
    }
    text << job->engine->get_global_grad_norm() << ' ';
  }
  for (const at::Tensor& parameter : job->model->parameters()) text << parameter.sum().item<float>() << ' ';
  job->communicator->barrier("the end of the test")->wait();
  return text.str();
}

// Trains a model with a bucket whose only parameter has no elements.
std::string train_beside_nothing(int rank, int port, int stage) {
  at::set_num_threads(1);
  set_rank_variables(rank, 2, port, std::chrono::seconds(60));
  setenv("ZERORUN_COMM", "shm", 1);
  torch::nn::Module model;
  at::Tensor some = model.register_parameter("some", torch::ones({8, 4}));
  at::Tensor nothing = model.register_parameter("nothing", torch::empty({0, 5}));
  float after = 0;
  {
    Engine engine = make_engine(model, sgd_config(stage), connect());
    for (int step = 0; step < 2; ++step) {
      engine.backward((some * static_cast<float>(rank)).sum() + nothing.sum());
      engine.step();
    }
    after = some.sum().item<float>();
  }
  if (stage < 3 && (some.sum().item<float>() != after || nothing.sum().item<float>() != 0)) return "lost";
  return std::to_string(after);
}

// Reads values that are stored in files and gathered into one buffer for both ranks. Rank 0 forks while it
// has the first parameter gathered. Its child switches to evaluation and uses the other parameter, and rank 1
// releases the first parameter. Then rank 0 must still read the right values.
std::string read_beside_a_child(int rank, int port, bool forks) {
  at::set_num_threads(1);
  set_rank_variables(rank, 2, port, std::chrono::seconds(60));
  setenv("ZERORUN_COMM", "shm", 1);
  torch::NoGradGuard no_grad;
  const auto communicator = connect();
  RankState state({{{1 << 16}, true}, {{1 << 16}, true}}, *communicator, {.marked = true, .shared = true}, 1,
                  /*in_files=*/true);
  bool training = true;
  Residency residency(state.buckets, state.store, *communicator, {}, [&] { return training; });
  if (!state.buckets.gathers_once(0)) return "not shared";
  std::ostringstream text;
  text << std::hexfloat << state.leaves[0].sum().item<float>() << ' ';
  communicator->barrier("both ranks have gathered")->wait();
  if (forks && rank == 0) {
    const pid_t child = fork();
    if (child == 0) {
      training = false;
      try {
        state.leaves[1].sum();
      } catch (const std::exception&) {  // only the parent may read the files
      }
      _exit(0);
    }
    waitpid(child, nullptr, 0);
  }
  communicator->barrier("the child has ended")->wait();
  if (rank == 1) residency.finish_iteration();
  communicator->barrier("rank 1 has released the buffer")->wait();
  if (rank == 0) text << state.leaves[0].sum().item<float>();
  communicator->barrier("the end of the test")->wait();
  return text.str();
}

}  // namespace

TEST_CASE("A forked child releases no buffer that its parent shares with other ranks") {
  std::vector<std::string> plain;
  for (const bool forks : {false, true}) {
    const int port = free_port();
    const auto endings = run_processes(2, [&](int rank) { return read_beside_a_child(rank, port, forks); });
    for (size_t rank = 0; rank < endings.size(); ++rank) {
      CHECK(endings[rank].status == 0);
      if (!forks) plain.push_back(endings[rank].text);
      CHECK(endings[rank].text == plain[rank]);
    }
    CHECK(plain[0].substr(0, plain[0].find(' ')) == plain[0].substr(plain[0].find(' ') + 1));
  }
}

TEST_CASE("A forked child that ends does not affect its parent") {
  const int stage = GENERATE(0, 1, 2, 3);
  const char* comm = GENERATE("shm", "gloo");
  CAPTURE(stage, comm);
  std::string plain;
  for (const bool forks : {false, true}) {
    const int port = free_port();
    const auto endings = run_processes(2, [&](int rank) { return train(rank, 2, port, comm, stage, forks); });
    for (const Ending& ending : endings) {
      CHECK(ending.status == 0);
      CHECK_FALSE(ending.text.empty());
      if (plain.empty()) plain = ending.text;
      CHECK(ending.text == plain);
    }
  }
}

TEST_CASE("A parameter without elements stays usable after the engine is destroyed") {
  const int stage = GENERATE(0, 1, 2, 3);
  CAPTURE(stage);
  const int port = free_port();
  const auto endings = run_processes(2, [&](int rank) { return train_beside_nothing(rank, port, stage); });
  // Two SGD steps with learning rate 0.1 and a mean gradient of 1/2.
  for (const Ending& ending : endings) CHECK(std::strtof(ending.text.c_str(), nullptr) == Approx(32 * 0.9F));
}

}  // namespace zerorun::testing
