// Tests an engine's checkpoints. Training resumes from a checkpoint of any number of ranks, stage and
// precision. If a checkpoint is damaged, does not match the model or cannot be written, all ranks get the
// error.
#include <catch2/catch.hpp>
#include <cstdio>
#include <fstream>
#include <random>

#include "base/error.h"
#include "checkpoint/publication.h"
#include "checkpoint/saved_state.h"
#include "engine/gathered_parameters.h"
#include "engine/saving/checkpoints.h"
#include "tests/checkpoint/faulty_file_system.h"
#include "tests/engine/collected_state.h"
#include "tests/engine/net.h"
#include "tests/engine/partition_support.h"
#include "tests/engine/state_support.h"
#include "tests/support/rank_threads.h"
#include "tests/support/settings.h"
#include "tests/support/temporary_folder.h"

namespace zerorun::testing {
using namespace checkpoint;
namespace {

namespace fs = std::filesystem;
using Catch::Matchers::Contains;

struct Way {
  StateCase how;
  int ranks;
  int stage;
  std::string precision;
  bool shares_memory;

  std::string name() const {
    return how.name + ", " + std::to_string(ranks) + " ranks, stage " + std::to_string(stage) + ", " +
           precision + (shares_memory ? ", shared" : "");
  }
};

constexpr int kSaved = 3;
constexpr int kSteps = 6;
constexpr const char* kSchedule =
    R"(, "scheduler": {"type": "WarmupLR", "params": {"warmup_max_lr": 0.002, "warmup_num_steps": 9}})";

struct Outcome {
  CollectedState at_the_checkpoint;
  CollectedState at_the_end;
  std::vector<std::vector<float>> losses;  // by rank: losses of the steps after the checkpoint

  /// The mean over ranks of the losses, by step: the loss of the whole batch.
  std::vector<double> mean_losses() const {
    std::vector<double> means(losses.front().size());
    for (const std::vector<float>& of_a_rank : losses) {
      for (size_t step = 0; step < means.size(); ++step)
        means[step] += of_a_rank[step] / static_cast<double>(losses.size());
    }
    return means;
  }
};

// CHECKs that losses are equal up to `tolerance`, which is relative for losses above 1.
void check_close(const std::vector<double>& a, const std::vector<double>& b, double tolerance) {
  REQUIRE(a.size() == b.size());
  for (size_t step = 0; step < a.size(); ++step)
    CHECK(std::abs(a[step] - b[step]) <= tolerance * std::max(1.0, std::abs(b[step])));
}

// If `loads`, loads the checkpoint of step kSaved; otherwise trains to that step and saves it. Then trains to
// step kSteps.
void run(const Way& way, const fs::path& folder, bool loads, Outcome& outcome) {
  outcome.losses.resize(way.ranks);
  run_ranks(
      way.ranks,
      [&](std::shared_ptr<Communicator> communicator) {
        const int rank = communicator->rank();
        StateTraining training(way.how, way.stage, way.precision, communicator, kSchedule);
        for (int step = 0; step < (loads ? 1 : kSaved); ++step) training.step(step);
        if (loads) {
          const torch::NoGradGuard no_grad;
          training.model->fixed.zero_();
          const RestoredCheckpoint restored = training.engine->load_checkpoint(folder);
          expect(restored.path == folder / "global_step3", "another checkpoint: " + restored.path.string());
          expect(restored.client_state == R"({"epoch":2})", restored.client_state);
          expect(training.engine->global_steps() == kSaved, "another step");
        } else {
          training.engine->save_checkpoint(folder, "", {.client_state = R"({"epoch": 2})"});  // asynchronous
        }
        outcome.at_the_checkpoint.add(training);
        for (int step = kSaved; step < kSteps; ++step) outcome.losses[rank].push_back(training.step(step));
        outcome.at_the_end.add(training);
      },
      std::chrono::seconds(60), way.shares_memory);
}

void check_reads(const Way& reader, const fs::path& folder, const Way& writer, const Outcome& written) {
  CAPTURE(writer.name(), reader.name());
  Outcome read;
  REQUIRE_NOTHROW(run(reader, folder, true, read));
  check_same(written.at_the_checkpoint.whole(), read.at_the_checkpoint.whole(),
             reader.precision == writer.precision);
  const bool are_fp32 = reader.precision == "fp32" && writer.precision == "fp32";
  check_close(written.mean_losses(), read.mean_losses(), are_fp32 ? 1e-6 : 3e-4);
  if (reader.ranks != writer.ranks || reader.precision != writer.precision) return;
  CHECK(read.losses == written.losses);
  check_same(written.at_the_end.whole(), read.at_the_end.whole());
}

}  // namespace

TEST_CASE("A training continues from a checkpoint of other numbers of ranks, stages and precisions") {
  const TemporaryFolder folder;
  const std::vector<StateCase> cases = all_state_cases();
  std::mt19937_64 random(1);
  auto any = [&](int count) { return static_cast<int>(random() % static_cast<uint64_t>(count)); };
  const std::vector<std::string> precisions = {"fp32", "bf16", "fp16"};
  constexpr int kPairs = 42;  // three for each optimizer
  for (int pair = 0; pair < kPairs; ++pair) {
    const StateCase& how = cases[pair % cases.size()];
    Way writer{how, 1 + any(4), any(4), precisions[any(3)], any(2) == 0};
    Way reader{how, 1 + any(4), any(4), precisions[any(3)], any(2) == 0};
    if (any(2) == 0) {  // then training must continue with the same bits
      reader.ranks = writer.ranks;
      reader.precision = writer.precision;
    }
    for (Way* way : {&writer, &reader}) {
      if (any(2) == 0 && way->stage > 0 && !way->how.client) way->how = in_files(way->how, folder / "nvme");
    }
    CAPTURE(pair);
    const fs::path at = folder / std::to_string(pair);
    Outcome written;
    REQUIRE_NOTHROW(run(writer, at, false, written));
    check_reads(reader, at, writer, written);
  }
}

TEST_CASE("All pairs of writers and readers, if all settings are tried") {
  if (!tries_all()) return;  // this takes minutes
  std::vector<Way> ways;
  for (const int ranks : {1, 2, 3, 4}) {
    for (const int stage : {0, 1, 2, 3}) {
      for (const std::string precision : {"fp32", "bf16"})
        ways.push_back({{}, ranks, stage, precision, (ranks + stage) % 2 == 0});
    }
  }
  int pairs = 0;
  for (const StateCase& how : all_state_cases()) {
    for (Way writer : ways) {
      const TemporaryFolder folder;
      writer.how = how;
      Outcome written;
      REQUIRE_NOTHROW(run(writer, folder / "a", false, written));
      for (Way reader : ways) {
        reader.how = how;
        reader.shares_memory = pairs % 2 == 0;
        check_reads(reader, folder / "a", writer, written);
        ++pairs;
      }
    }
  }
  std::printf("%d pairs\n", pairs);
}

TEST_CASE("A load detects a flipped bit at any position") {
  const TemporaryFolder folder;
  const StateCase adam = all_state_cases().front();
  Outcome written;
  run({adam, 2, 1, "bf16", false}, folder / "a", false, written);
  int flipped = 0;
  for (const auto& entry : fs::directory_iterator(folder / "a" / "global_step3")) {
    if (entry.path().extension() != ".safetensors") continue;
    const auto size = static_cast<int64_t>(fs::file_size(entry.path()));
    for (int64_t at = 0; at < size; at += 3001) {
      std::fstream file(entry.path(), std::ios::in | std::ios::out | std::ios::binary);
      char byte = 0;
      file.seekg(at).get(byte);
      file.seekp(at).put(static_cast<char>(byte ^ 1)).flush();
      Outcome read;
      CAPTURE(entry.path(), at);
      CHECK_THROWS_WITH(run({adam, 2, 1, "bf16", false}, folder / "a", true, read),
                        Contains(entry.path().filename().string()) && Contains("another checksum"));
      file.seekp(at).put(byte);
      ++flipped;
    }
  }
  CHECK(flipped > 10);
  Outcome read;
  CHECK_NOTHROW(run({adam, 2, 1, "bf16", false}, folder / "a", true, read));
}

TEST_CASE("A failed write is an error on all ranks, and the previous checkpoint stays") {
  const TemporaryFolder folder;
  const StateCase adam = all_state_cases().front();
  const Way way{adam, 2, 2, "fp32", false};
  for (const int faulty_rank : {0, 1}) {
    bool all_tried = false;
    for (int64_t call = 0; !all_tried; ++call) {
      CAPTURE(faulty_rank, call);
      const fs::path at = folder / (std::to_string(faulty_rank) + "-" + std::to_string(call));
      Outcome first;
      run(way, at, false, first);
      std::vector<std::string> errors(2);
      run_ranks(2, [&](std::shared_ptr<Communicator> communicator) {
        const int rank = communicator->rank();
        StateTraining training(adam, 2, "fp32", communicator, kSchedule);
        training.step(0);
        FaultyFileSystem files(local_file_system(), {.call = rank == faulty_rank ? call : -1,
                                                     .error = call % 2 == 0 ? ENOSPC : EIO});
        try {
          training.state->checkpoints.write_to(files);
          save_checkpoint(*training.state, at, "second", {});
          training.engine->wait_for_checkpoint();
        } catch (const UserError& error) {
          errors[rank] = error.what();
        }
        if (rank == faulty_rank) all_tried = files.calls() <= call;
        expect(std::isfinite(training.step(1)), "training goes on");
      });
      CHECK(errors[0] == errors[1]);
      CHECK(errors[0].empty() == all_tried);
      if (!all_tried)
        CHECK_THAT(errors[0], Contains("rank " + std::to_string(faulty_rank)) && Contains("cannot be"));
      const auto latest = latest_tag(local_file_system(), at);
      REQUIRE(latest);
      if (*latest != "global_step3") continue;
      Outcome read;
      CHECK_NOTHROW(run(way, at, true, read));
      check_same(first.at_the_checkpoint.whole(), read.at_the_checkpoint.whole());
    }
  }
}

TEST_CASE("A save continues after short writes") {
  const TemporaryFolder folder;
  const StateCase adam = all_state_cases().front();
  CHECK_NOTHROW(run_ranks(2, [&](std::shared_ptr<Communicator> communicator) {
    StateTraining training(adam, 1, "fp32", communicator);
    training.step(0);
    FaultyFileSystem files(local_file_system(), {.is_short = true});
    training.state->checkpoints.write_to(files);
    save_checkpoint(*training.state, folder / "a", "", {.asynchronous = false});
    const float next = training.step(1);
    training.engine->load_checkpoint(folder / "a");
    expect(training.step(1) == next, "another loss");
  }));
}

TEST_CASE("Errors of saves and loads name what does not match") {
  const TemporaryFolder folder;
  const std::vector<StateCase> cases = all_state_cases();
  Outcome written;
  run({cases[0], 1, 0, "fp32", false}, folder / "a", false, written);
  auto error_of = [&](const std::function<void(StateTraining&)>& action, const StateCase& how,
                      const std::string& more = "") -> std::string {
    return user_error([&] {
      run_ranks(2, [&](std::shared_ptr<Communicator> communicator) {
        StateTraining training(how, 2, "fp32", communicator, more);
        action(training);
      });
    });
  };
  auto load = [&](StateTraining& training) { training.engine->load_checkpoint(folder / "a"); };
  CHECK_THAT(error_of(load, cases[2]),
             Contains("the checkpoint's optimizer is AdamW, and this engine's is SGD"));
  CHECK_THAT(
      error_of([&](StateTraining& training) { training.engine->load_checkpoint(folder / "b"); }, cases[0]),
      Contains("b: there is no such folder"));
  CHECK_THAT(error_of([&](StateTraining& training) { training.engine->load_checkpoint(folder / "a", "x"); },
                      cases[0]),
             Contains("is not a checkpoint"));
  CHECK_THAT(
      error_of([&](StateTraining& training) { training.engine->save_checkpoint(folder / "a", "../x"); },
               cases[0]),
      Contains("the name of a folder"));
  auto in_between = [&](StateTraining& training) {
    training.step(0);
    training.engine->load_checkpoint(folder / "a");
  };
  CHECK_THAT(error_of(in_between, cases[0], R"(, "gradient_accumulation_steps": 2)"),
             Contains("between the micro-steps"));
  auto before_step = [&](StateTraining& training) {
    training.engine->backward(training.model->loss(torch::zeros({1, 61})));
    training.engine->save_checkpoint(folder / "a", "x");
  };
  CHECK_THAT(error_of(before_step, cases[0]), Contains("between backward() and step()"));
  auto two_tags = [&](StateTraining& training) {
    training.engine->save_checkpoint(folder / "a",
                                     "tag" + std::to_string(training.state->mesh.data().rank()));
  };
  CHECK_THAT(error_of(two_tags, cases[0]),
             Contains("rank 0 \"tag0\" in ") && Contains("; rank 1 \"tag1\" in "));
  auto two_folders = [&](StateTraining& training) {
    training.engine->save_checkpoint(folder / std::to_string(training.state->mesh.data().rank()), "x");
  };
  CHECK_THAT(error_of(two_folders, cases[0]), Contains("ranks save different checkpoints"));
  auto two_contents = [&](StateTraining& training) {
    training.engine->save_checkpoint(folder / "a", "x",
                                     {.exclude_frozen = training.state->mesh.data().rank() == 1});
  };
  CHECK_THAT(error_of(two_contents, cases[0]), Contains(", without frozen parameters: give"));
  auto bad_client_state = [&](StateTraining& training) {
    training.engine->save_checkpoint(folder / "a", "x", {.client_state = "{"});
  };
  CHECK_THAT(error_of(bad_client_state, cases[0]), Contains("client_state is not JSON"));
  auto moved_out = [&](StateTraining& training) {
    training.model->bias.set_data(torch::zeros({13}));
    training.engine->save_checkpoint(folder / "a", "x");
  };
  CHECK_THAT(error_of(moved_out, cases[0]), Contains("bias has left its bucket"));
  auto one_rank_failed = [&](StateTraining& training) {
    if (training.state->mesh.data().rank() == 1) training.state->held.note_backward();
    training.engine->save_checkpoint(folder / "a", "x");
  };
  CHECK_THAT(error_of(one_rank_failed, cases[0]),
             Contains("rank 1: engine.save_checkpoint() between backward() and step()"));
  auto stepped_before = [&](StateTraining& training) {
    training.step(0);
    training.engine->load_checkpoint(folder / "a", "", {.optimizer_states = false});
  };
  CHECK_THAT(error_of(stepped_before, cases[2]), Contains("has taken 1 steps"));
  auto without_optimizer = [&](StateTraining& training) {
    training.engine->load_checkpoint(folder / "a", "", {.optimizer_states = false});
    expect(training.state->optimizer->steps() == 0, "steps of an optimizer that starts anew");
  };
  CHECK(error_of(without_optimizer, cases[2]) == "no error");
}

}  // namespace zerorun::testing
