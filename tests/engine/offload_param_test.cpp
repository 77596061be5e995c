// Tests slices of parameters in files at stage 3: training gives the same bits as in memory, with optimizer
// state in files or in memory. Also tests writes of the program, checkpoints, bytes read and written, and
// refused settings.
#include <sys/stat.h>
#include <unistd.h>

#include <catch2/catch.hpp>
#include <chrono>
#include <cstring>
#include <functional>
#include <map>
#include <mutex>
#include <optional>
#include <set>
#include <thread>

#include "base/error.h"
#include "engine/gathered_parameters.h"
#include "tests/engine/offload_support.h"
#include "tests/engine/partition_support.h"
#include "tests/support/rank_threads.h"
#include "tests/support/temporary_folder.h"

namespace zerorun::testing {

namespace fs = std::filesystem;
using Catch::Matchers::Contains;

TEST_CASE("Every built-in optimizer updates values in files") {
  check_files_of_every_optimizer({{1, 3, false}, {2, 3, true}, {3, 3, false}},
                                 [](const StateCase& how, int ranks, const fs::path& folder) {
                                   const StateCase filed = with_values_in_files(how, folder);
                                   return ranks == 2 ? filed : in_files(filed, folder);
                                 });
}

TEST_CASE("Writes of the program reach values in files, also of frozen parameters") {
  const TemporaryFolder folder;
  const StateCase adam = wide(all_state_cases().front());
  const int ranks = GENERATE(1, 2);
  const std::string precision = GENERATE("fp32", "bf16");
  const bool shares_memory = GENERATE(false, true);
  CAPTURE(ranks, precision, shares_memory);
  auto writes = [](StateTraining& training, int step) {
    const torch::NoGradGuard no_grad;
    StateNet& model = training.model;
    if (step == 0) model->first.mul_(0.5);
    if (step == 1) model->fixed.add_(model->fixed);
    if (step == 2) {
      const GatheredParameters scope(*training.engine, {model->last, model->fixed}, 0);
      if (training.state->mesh.data().rank() == 0) {
        std::memset(model->last.mutable_data_ptr(), 0, model->last.nbytes() / 2);
      }
    }
    if (step == 3) {
      const GatheredParameters scope(*training.engine, {model->fixed}, 0);
      if (training.state->mesh.data().rank() == 0) model->fixed.fill_(0.25);
    }
    if (step == 4) training.engine->synchronize();
  };
  Trained in_memory, from_files;
  train(adam, ranks, 3, precision, in_memory, shares_memory, writes);
  train(with_values_in_files(adam, folder / ""), ranks, 3, precision, from_files, shares_memory, writes);
  check_same_training(from_files, in_memory);
}

TEST_CASE("A checkpoint links the files that hold values, and can be loaded into files or memory") {
  const TemporaryFolder folder;
  const StateCase plain = wide(all_state_cases().front());
  const StateCase filed = in_files(with_values_in_files(plain, folder / "nvme"), folder / "nvme");
  const std::string precision = GENERATE("fp32", "bf16");
  CAPTURE(precision);
  Trained straight;
  std::vector<std::unique_ptr<CollectedState>> states(5);
  for (auto& state : states) state = std::make_unique<CollectedState>();
  train(filed, 2, 3, precision, straight, false, [&](StateTraining& training, int step) {
    training.engine->save_checkpoint(folder / "saves");
    states[step]->add(training);
  });
  std::map<std::string, std::set<ino_t>> files;
  for (int step = 0; step < 5; ++step) {
    const fs::path saved = folder / "saves" / ("global_step" + std::to_string(step + 1));
    int slots = 0;
    for (const auto& entry : fs::directory_iterator(saved)) {
      const std::string name = entry.path().filename().string();
      if (name.find("offloaded-values") == std::string::npos) continue;
      ++slots;
      struct stat facts {};
      REQUIRE(::stat(entry.path().c_str(), &facts) == 0);
      files[name].insert(facts.st_ino);
    }
    CHECK(slots > 4);
    for (const bool reads_in_files : {false, true}) {
      for (const std::string other : {"fp32", "bf16"}) {
        CollectedState read;
        run_ranks(3, [&](std::shared_ptr<Communicator> communicator) {
          StateTraining training(reads_in_files ? filed : plain, 3, other, communicator);
          training.engine->load_checkpoint(folder / "saves", saved.filename().string());
          read.add(training);
        });
        CAPTURE(step, reads_in_files, other);
        check_same(states[step]->whole(), read.whole(), other == precision);
      }
    }
  }
  const auto of_frozen =
      std::ranges::count_if(files, [](const auto& file) { return file.second.size() == 1; });
  CHECK(of_frozen == 2);  // one frozen bucket on each of two ranks
  for (const auto& [name, inodes] : files) CHECK((inodes.size() == 1 || inodes.size() == 5));
}

TEST_CASE("If a file of frozen values cannot be linked, it is copied once, and later saves link the copy") {
  const TemporaryFolder folder;
  const fs::path elsewhere = "/dev/shm/zerorun-test-" + std::to_string(::getpid());
  const StateCase filed = with_values_in_files(wide(all_state_cases().front()), folder / "nvme");
  const auto inodes_of = [](const fs::path& saves, int rank) {
    std::map<std::string, std::set<ino_t>> files;
    for (const auto& entry : fs::recursive_directory_iterator(saves)) {
      const std::string name = entry.path().filename().string();
      if (name.find("rank-0000" + std::to_string(rank) + "-offloaded-values") == std::string::npos) continue;
      struct stat facts {};
      expect(::stat(entry.path().c_str(), &facts) == 0, name);
      files[name].insert(facts.st_ino);
    }
    return files;
  };
  run_ranks(2, [&](std::shared_ptr<Communicator> communicator) {
    StateTraining training(filed, 3, "bf16", communicator);
    const int rank = communicator->rank();
    auto save_twice = [&](const fs::path& saves) {
      for (int time = 0; time < 2; ++time) {
        training.step(0);
        training.engine->save_checkpoint(saves);
        training.engine->wait_for_checkpoint();
      }
    };
    const auto frozen_in = [&](const fs::path& saves) {
      return std::ranges::count_if(inodes_of(saves, rank),
                                   [](const auto& file) { return file.second.size() == 1; });
    };
    if (fs::exists("/dev/shm")) {  // another file system, in which a file of `folder` cannot be linked
      save_twice(elsewhere);
      expect(frozen_in(elsewhere) == 1, "copied once");
    }
    save_twice(folder / "a");
    expect(frozen_in(folder / "a") == 1, "linked");
    communicator->barrier("all have looked")->wait();
    if (rank == 0) fs::remove_all(folder / "a");  // a file that has lost its last name cannot be linked
    communicator->barrier("removed")->wait();
    save_twice(folder / "b");
    expect(frozen_in(folder / "b") == 1, "copied once, then linked");
    {
      const torch::NoGradGuard no_grad;
      training.model->fixed.mul_(2);
    }
    save_twice(folder / "b");
    const auto files = inodes_of(folder / "b", rank);
    expect(std::ranges::count_if(files, [](const auto& file) { return file.second.size() == 2; }) == 1,
           "what was written to is written anew, once");
  });
  fs::remove_all(elsewhere);
}

namespace {

// A model with more layers than the files have buffers. Each layer is a bucket.
struct Layers {
  static constexpr int kLayers = 12, kWidth = 512;

  // `between` is called on each rank after each layer of the forward pass.
  Layers(
      const std::string& precision, const fs::path& folder, std::shared_ptr<Communicator> communicator,
      const std::function<void(int layer)>& between = [](int) {}) {
    for (int layer = 0; layer < kLayers; ++layer) {
      torch::nn::Linear linear(torch::nn::LinearOptions(kWidth, kWidth).bias(false));
      {
        const torch::NoGradGuard no_grad;
        linear->weight.copy_(
            torch::arange(kWidth * kWidth).add(layer).sin().view({kWidth, kWidth}).mul(0.05));
      }
      model->push_back(linear);
      model->push_back(torch::nn::Functional([between, layer](const at::Tensor& values) {
        between(layer);
        return values;
      }));
    }
    const std::string zero = R"(, "stage3_max_live_parameters": 0, "stage3_prefetch_bucket_size": 300000)";
    const Config config =
        parse_config(tiny_config(precision, 1, 0, 3, offload_in("offload_param", folder) + zero), "layers",
                     communicator->world_size());
    InitializeOptions options;
    options.communicator = communicator;
    options.bucket_numel = 1;
    state = std::make_shared<EngineState>(model_of(*model), config, Mesh(communicator),
                                          collect_parameters(model_of(*model), config, options), options);
    engine.emplace(state);
  }
  void step() {
    engine->backward(model->forward(torch::ones({2, kWidth}, engine->dtype())).pow(2).mean());
    engine->step();
  }

  torch::nn::Sequential model;
  std::shared_ptr<EngineState> state;
  std::optional<Engine> engine;
};

}  // namespace

TEST_CASE("A step writes values in files once, and reads them for each gather") {
  const TemporaryFolder folder;
  const std::string precision = GENERATE("", R"("bf16": {"enabled": true},)");
  run_ranks(1, [&](std::shared_ptr<Communicator> communicator) {
    Layers layers(precision, folder / "", communicator);
    constexpr int kSteps = 4, kLayers = Layers::kLayers;
    SliceStore& store = layers.state->store;
    const StateFiles& files = store.value_files()->files();
    for (int step = 0; step < 2; ++step) layers.step();
    store.finish_generation();
    const int64_t read = files.read_bytes(), written = files.written_bytes();
    const int64_t gathers = layers.engine->residency().gathers;
    for (int step = 0; step < kSteps; ++step) layers.step();
    store.finish_generation();
    const double slice = (precision.empty() ? 4 : 2) * Layers::kWidth * Layers::kWidth;
    const double written_slices = static_cast<double>(files.written_bytes() - written) / slice;
    CHECK(written_slices == Approx(kSteps * kLayers).epsilon(0.02));  // allows for headers
    // A slice that is still in one of the 5 buffers is not read again. In each step this saves up to 5 reads
    // at the beginning of forward, of backward and of the update.
    const auto updates = static_cast<double>(precision.empty() ? kSteps * kLayers : 0);
    const double uses = static_cast<double>(layers.engine->residency().gathers - gathers) + updates;
    const double read_slices = static_cast<double>(files.read_bytes() - read) / slice;
    INFO(uses << " uses, " << read_slices << " read");
    CHECK(uses >= kSteps * (2 * kLayers - 2));
    CHECK(read_slices <= 1.02 * uses);
    CHECK(read_slices >= uses - kSteps * 3 * 5 - 5);
  });
}

TEST_CASE("Ranks that share memory gather values from files into one buffer, also if a rank is late") {
  const TemporaryFolder folder;
  const std::string precision = GENERATE("", R"("bf16": {"enabled": true},)");
  constexpr int kRanks = 3;
  struct Outcome {
    std::vector<at::Tensor> parameters;
    int64_t peak = 0;  // bytes of gathered values, summed over all ranks
  };
  auto train = [&](bool shares_memory, bool some_are_late) {
    std::mutex mutex;
    Outcome outcome;
    run_ranks(
        kRanks,
        [&](std::shared_ptr<Communicator> communicator) {
          const int rank = communicator->rank();
          Layers layers(precision, folder / "", communicator, [&](int layer) {
            if (some_are_late && layer % kRanks == rank)
              std::this_thread::sleep_for(std::chrono::milliseconds(3));
          });
          for (int step = 0; step < 4; ++step) layers.step();
          const int64_t peak = layers.engine->residency().peak_resident_bytes;
          const GatheredParameters scope(*layers.engine, layers.model->parameters());
          const std::lock_guard lock(mutex);
          outcome.peak += peak;
          if (rank > 0) return;
          for (const at::Tensor& parameter : layers.model->parameters())
            outcome.parameters.push_back(parameter.detach().clone());
        },
        std::chrono::seconds(60), shares_memory);
    return outcome;
  };
  const Outcome apart = train(false, false);
  for (const bool some_are_late : {false, true}) {
    const Outcome together = train(true, some_are_late);
    REQUIRE(together.parameters.size() == Layers::kLayers);
    for (int layer = 0; layer < Layers::kLayers; ++layer)
      CHECK(at::equal(together.parameters[layer], apart.parameters[layer]));
    CHECK(together.peak * kRanks <= apart.peak);
  }
}

TEST_CASE("Slices stay in memory up to max_in_cpu, and no files are used if all slices fit") {
  const TemporaryFolder folder;
  auto bytes_of = [&](const std::string& most) {
    BytesByCategory bytes;
    run_ranks(1, [&](std::shared_ptr<Communicator> communicator) {
      StateCase how = all_state_cases().front();
      how.zero = R"(, "offload_param": {"device": "nvme", "nvme_path": ")" + (folder / "").string() + "\"" +
                 most + "}";
      StateTraining training(how, 3, "fp32", communicator, "", 0, /*bucket_numel=*/1);
      bytes = training.engine->bytes_by_category();
    });
    return bytes;
  };
  constexpr int64_t kFirst = 61 * 67 * 4, kLast = 67 * 13 * 4;
  CHECK(bytes_of("").in_files == 0);
  constexpr int64_t kBias = 16 * 4;  // bytes; below the persistence threshold, so it stays gathered
  CHECK(bytes_of(R"(, "max_in_cpu": 0)").parameters == kBias);
  const int64_t some = bytes_of(R"(, "max_in_cpu": 1200)").parameters;
  CHECK((some >= kLast && some < kFirst));
}

TEST_CASE("A bit that flips in a file of values ends training with an error that names bucket and rank") {
  const TemporaryFolder folder;
  std::string error;
  run_ranks(1, [&](std::shared_ptr<Communicator> communicator) {
    Layers layers(R"("bf16": {"enabled": true},)", folder / "", communicator);
    layers.step();
    layers.state->store.finish_generation();
    flip_bits_in_files_of(folder / "");
    try {
      layers.step();
    } catch (const TrainingError& thrown) {
      error = thrown.what();
    }
  });
  CHECK_THAT(error, Contains("the offloaded state of bucket ") && Contains(" on rank 0") &&
                        Contains("another checksum") && Contains("resume from the newest checkpoint"));
}

TEST_CASE("An optimizer object of the program cannot update values in files") {
  const TemporaryFolder folder;
  auto error_of = [&](int stage) -> std::string {
    return user_error([&] {
      run_ranks(1, [&](std::shared_ptr<Communicator> communicator) {
        StateNet model;
        torch::optim::Adam adam({model->first, model->last, model->bias});
        InitializeOptions options;
        options.communicator = communicator;
        options.optimizer = &adam;
        const std::string text = R"({"train_micro_batch_size_per_gpu": 1, "zero_optimization": {"stage": )" +
                                 std::to_string(stage) + offload_in("offload_param", folder / "") + "}}";
        initialize(*model, parse_config(text, "refusals", 1), std::move(options));
      });
    });
  };
  CHECK_THAT(error_of(3), Contains("offload_param.device is \"nvme\"") && Contains("the program's own"));
  CHECK(error_of(2) == "no error");
}

}  // namespace zerorun::testing
