// Tests optimizer state in files: training gives the same bits as in memory, in all settings. Also tests
// bytes read and written, checkpoints, and refused settings.
#include <catch2/catch.hpp>

#include "base/error.h"
#include "checkpoint/saved_state.h"
#include "tests/engine/net.h"
#include "tests/engine/offload_support.h"
#include "tests/engine/partition_support.h"
#include "tests/support/rank_threads.h"
#include "tests/support/temporary_folder.h"
#include "tests/support/tiny_gpt2.h"

namespace zerorun::testing {

namespace fs = std::filesystem;
using Catch::Matchers::Contains;

TEST_CASE("Every built-in optimizer stores its state in files, in slices of several chunks") {
  check_files_of_every_optimizer(
      {{2, 1, true}, {1, 2, false}, {3, 3, false}},
      [](const StateCase& how, int, const fs::path& folder) { return testing::in_files(how, folder); });
}

TEST_CASE("A share of the optimizer states in files, and the rest in memory") {
  const TemporaryFolder folder;
  const std::string precision = GENERATE("", R"("bf16": {"enabled": true},)");
  auto run = [&](const std::string& offload) {
    return train_tiny_gpt2(tiny_config(precision, 1, 1.0, 3, offload), {.world_size = 2,
                                                                        .steps = 5,
                                                                        .bucket_numel = 2000,
                                                                        .group_weight_decay = {},
                                                                        .inject_inf_steps = {3}});
  };
  auto states_of = [](const RunResult& result) { return result.bytes.master + result.bytes.moments; };
  const RunResult in_memory = run("");
  const RunResult in_files = run(offload_in("offload_optimizer", folder / ""));
  for (const double ratio : {0.0, 0.3, 0.7}) {
    std::string offload = offload_in("offload_optimizer", folder / "");
    offload.insert(offload.size() - 1, R"(, "ratio": )" + std::to_string(ratio));
    const RunResult mixed = run(offload);
    CAPTURE(precision, ratio);
    check_same_bits(mixed, in_memory);
    CHECK((mixed.bytes.in_files == 0) == (ratio == 0));
    CHECK(mixed.bytes.in_files <= in_files.bytes.in_files);
    const double kept = static_cast<double>(states_of(mixed)) / static_cast<double>(states_of(in_memory));
    CHECK(kept >= 1 - ratio);
    CHECK(kept <= 1.3 - ratio);
  }
}

TEST_CASE("Writes of the program reach master weights in files") {
  const TemporaryFolder folder;
  const StateCase adam = wide(all_state_cases().front());
  const int stage = GENERATE(1, 2, 3);
  auto writes = [](StateTraining& training, int step) {
    const torch::NoGradGuard no_grad;
    if (step % 2 == 0) training.model->first.mul_(0.5);
  };
  Trained in_memory, in_files;
  train(adam, 2, stage, "bf16", in_memory, false, writes);
  train(testing::in_files(adam, folder / ""), 2, stage, "bf16", in_files, false, writes);
  check_same_training(in_files, in_memory);
}

TEST_CASE("A checkpoint after every step has that step's state, and links slots instead of writing them") {
  const TemporaryFolder folder;
  const StateCase adam = in_files(wide(all_state_cases().front()), folder / "nvme");
  Trained straight;
  std::vector<std::unique_ptr<CollectedState>> states(5);
  for (auto& state : states) state = std::make_unique<CollectedState>();
  train(adam, 2, 2, "bf16", straight, false, [&](StateTraining& training, int step) {
    training.engine->save_checkpoint(folder / "saves");
    states[step]->add(training);
  });
  for (int step = 0; step < 5; ++step) {
    const fs::path saved = folder / "saves" / ("global_step" + std::to_string(step + 1));
    int slots = 0;
    for (const auto& entry : fs::directory_iterator(saved)) {
      if (entry.path().filename().string().find("offloaded") == std::string::npos) continue;
      ++slots;
      CHECK(fs::file_size(entry.path()) > 0);
    }
    CHECK(slots > 2);
    for (const bool reads_in_files : {false, true}) {
      CollectedState read;
      run_ranks(3, [&](std::shared_ptr<Communicator> communicator) {
        const StateCase reader = wide(all_state_cases().front());
        StateTraining training(reads_in_files ? in_files(reader, folder / "nvme") : reader, 3, "bf16",
                               communicator);
        training.engine->load_checkpoint(folder / "saves", saved.filename().string());
        read.add(training);
      });
      check_same(states[step]->whole(), read.whole());
    }
  }
}

TEST_CASE("A step reads and writes as many bytes as the formula says") {
  struct Row {
    std::string precision;
    size_t optimizer;
    double per_parameter;  // bytes read plus written per parameter and step, from docs/offload.md
    int walks = 1;         // passes over all chunks; each finds some chunks in buffers
  };
  const Row row = GENERATE(Row{"bf16", 0, 24}, Row{"fp32", 0, 16}, Row{"fp32", 6, 8}, Row{"bf16", 7, 48, 2},
                           Row{"fp32", 7, 32, 2}, Row{"bf16", 8, 32, 2});
  CAPTURE(row.precision, row.optimizer);
  const TemporaryFolder folder;
  StateCase how = in_files(all_state_cases()[row.optimizer], folder / "");
  how.width = 61 * 512;  // makes the state much larger than the buffers
  run_ranks(1, [&](std::shared_ptr<Communicator> communicator) {
    StateTraining training(how, 2, row.precision, communicator);
    training.step(0);
    SliceStore& store = training.state->store;
    const StateFiles& files = store.files()->files();
    store.finish_generation();
    const int64_t read_before = files.read_bytes(), written_before = files.written_bytes();
    constexpr int kSteps = 4;
    for (int step = 1; step <= kSteps; ++step) training.step(step);
    store.finish_generation();
    const double parameters = kSteps * static_cast<double>(training.state->buckets.numel());
    const double read = static_cast<double>(files.read_bytes() - read_before) / parameters;
    const double written = static_cast<double>(files.written_bytes() - written_before) / parameters;
    const double kept = row.walks * kSteps * static_cast<double>(files.buffer_bytes()) / parameters;
    const double half = row.per_parameter / 2;
    INFO(read << " read, " << written << " written, " << kept << " may be found in the buffers");
    CHECK(kept < 0.8 * half);
    CHECK(written == Approx(half).epsilon(0.005));
    CHECK(read <= 1.005 * half);
    CHECK(read >= half - kept);
  });
}

TEST_CASE("A bit that flips on the disk ends training with an error that names bucket and rank") {
  const TemporaryFolder folder;
  const StateCase how = in_files(wide(all_state_cases().front()), folder / "");
  std::string error;
  run_ranks(1, [&](std::shared_ptr<Communicator> communicator) {
    StateTraining training(how, 2, "bf16", communicator);
    training.step(0);
    training.step(1);
    training.state->store.finish_generation();
    flip_bits_in_files_of(folder / "");
    try {
      training.step(2);
    } catch (const TrainingError& thrown) {
      error = thrown.what();
    }
  });
  CHECK_THAT(error, Contains("the offloaded state of bucket ") && Contains(" on rank 0") &&
                        Contains("another checksum") && Contains("resume from the newest checkpoint"));
}

TEST_CASE("Parameters without elements, and optimizers without state, are no special case") {
  const TemporaryFolder folder;
  const int stage = GENERATE(1, 2, 3);
  const std::string optimizer = GENERATE("AdamW", "SGD");
  CAPTURE(stage, optimizer);
  CHECK_NOTHROW(run_ranks(2, [&](std::shared_ptr<Communicator> communicator) {
    struct Odd : torch::nn::Module {
      Odd() {
        weight = register_parameter("weight", torch::ones({40, 3}));
        none = register_parameter("none", torch::zeros({0, 3}));
      }
      at::Tensor weight, none;
    } model;
    const std::string text = R"({"train_micro_batch_size_per_gpu": 1, "optimizer": {"type": ")" + optimizer +
                             R"("}, "zero_optimization": {"stage": )" + std::to_string(stage) +
                             offload_in("offload_optimizer", folder / "") + "}}";
    InitializeOptions options;
    options.communicator = communicator;
    options.bucket_numel = 1;
    Engine engine = initialize(model, parse_config(text, "odd", 2), std::move(options));
    engine.backward(model.weight.sum() + model.none.sum());
    engine.step();
    engine.save_checkpoint(folder / "saves");
    engine.wait_for_checkpoint();
    engine.load_checkpoint(folder / "saves");
    expect(engine.bytes_by_category().in_files == 0 || optimizer == "AdamW", "files of nothing");
  }));
}

TEST_CASE("State that cannot be in files is refused by name") {
  const TemporaryFolder folder;
  const std::vector<StateCase> cases = all_state_cases();
  auto error_of = [&](const StateCase& how, int stage) -> std::string {
    return user_error([&] {
      run_ranks(1, [&](std::shared_ptr<Communicator> communicator) {
        StateNet model(0, how.width);
        const auto client = how.client ? how.client({model->first, model->last, model->bias}) : nullptr;
        InitializeOptions options;
        options.communicator = communicator;
        options.optimizer = client.get();
        const std::string text = R"({"train_micro_batch_size_per_gpu": 1, "zero_optimization": {"stage": )" +
                                 std::to_string(stage) + how.zero + "}" +
                                 (how.client ? "" : R"(, "optimizer": )" + how.optimizer) + "}";
        initialize(*model, parse_config(text, "refusals", 1), std::move(options));
      });
    });
  };
  CHECK_THAT(error_of(in_files(cases.back(), folder / ""), 2),
             Contains("offload_optimizer.device is \"nvme\"") && Contains("the program's own"));
  CHECK(error_of(in_files(cases.back(), folder / ""), 0) == "no error");
  folder.write("file", "x");
  CHECK_THAT(error_of(in_files(cases[0], folder / "file"), 1), Contains("file cannot be given a file"));
  CHECK(error_of(in_files(cases[0], folder / "made/for/it"), 1) == "no error");
  CHECK(fs::is_directory(folder / "made/for/it"));
  CHECK(fs::is_empty(folder / "made/for/it"));
}

}  // namespace zerorun::testing
