// Tests training of two ranks with a GPU each, where two GPUs behave differently from one: programs whose
// ranks differ in their gradients, saves in the background, and a GPU whose memory LibTorch has cached. The
// ranks are processes, and the parent process never uses a GPU. The first two run on CPU ranks too; the rest
// is left out where there are not two GPUs.
#define CATCH_CONFIG_RUNNER
#include <ATen/DeviceAccelerator.h>
#include <dlfcn.h>
#include <torch/torch.h>

#include <catch2/catch.hpp>
#include <cstdio>
#include <cstdlib>
#include <functional>
#include <sstream>
#include <string>
#include <vector>

#include "base/cuda_driver.h"
#include "comm/connect/rendezvous.h"
#include "engine/engine.h"
#include "tests/comm/rank_processes.h"
#include "tests/support/temporary_folder.h"

namespace zerorun::testing {
namespace {

constexpr int kRanks = 2;
constexpr int kSteps = 6;
constexpr int kLeaveOutNothing = -1;

int usable_gpus = 0;  // set by main()

// x + tanh(linear(x)), layer after layer. In a call each rank may leave out the bias of one layer: the bias
// then gets no gradient, while the layer's weight, which is in the same bucket, does.
struct Chain : torch::nn::Module {
  Chain(int64_t layers, int64_t width) {
    torch::manual_seed(5);
    for (int64_t layer = 0; layer < layers; ++layer) {
      const std::string name = std::to_string(layer);
      weights.push_back(register_parameter("weight" + name, 0.02 * torch::randn({width, width})));
      biases.push_back(register_parameter("bias" + name, 0.02 * torch::randn({width})));
    }
  }

  at::Tensor forward(at::Tensor x, int leave_out) {
    for (size_t layer = 0; layer < weights.size(); ++layer) {
      const bool whole = static_cast<int>(layer) != leave_out;
      x = x + at::linear(x, weights[layer], whole ? std::optional(biases[layer]) : std::nullopt).tanh();
    }
    return x;
  }

  std::vector<at::Tensor> weights;
  std::vector<at::Tensor> biases;
};

constexpr int64_t kLayers = 32;
constexpr int64_t kWidth = 64;
constexpr double kLearningRate = 1e-3;

// The layer whose bias a rank leaves out. In the first step, which has no plan yet, only rank 1 leaves one
// out.
int left_out(int step, int rank) {
  if (step == 0 && rank == 0) return kLeaveOutNothing;
  return static_cast<int>((5 + 3 * step + 11 * rank) % kLayers);
}

at::Tensor batch(int step, int rank, int64_t width) {
  auto generator = at::detail::createCPUGenerator(100 * step + rank);
  return torch::randn({4, width}, generator);
}

at::Tensor loss_of(Chain& model, int step, int rank, int leave_out, c10::Device device = c10::kCPU) {
  const int64_t width = model.biases.front().numel();
  return model.forward(batch(step, rank, width).to(device), leave_out).square().mean();
}

std::string config_of(int stage) {
  return R"({"train_micro_batch_size_per_gpu": 4, "gradient_clipping": 0, "optimizer": {"type": "AdamW", "params": {"lr": )" +
         std::to_string(kLearningRate) + R"(, "weight_decay": 0.01}}, "zero_optimization": {"stage": )" +
         std::to_string(stage) + R"(, "stage3_param_persistence_threshold": 0}})";
}

Engine make_engine(Chain& model, int stage, std::shared_ptr<Communicator> communicator) {
  InitializeOptions options;
  options.communicator = std::move(communicator);
  return initialize(model, parse_config(config_of(stage), "two_gpus_test", kRanks), options);
}

using Losses = std::vector<double>;

std::string text_of(const Losses& losses) {
  std::ostringstream text;
  text.precision(17);
  for (double loss : losses) text << loss << ' ';
  return text.str();
}

Losses losses_in(const std::string& text) {
  std::istringstream words(text);
  Losses losses;
  for (double loss = 0; words >> loss;) losses.push_back(loss);
  INFO(text);
  REQUIRE((losses.size() == kSteps && words.eof()));
  return losses;
}

void check_close(const Losses& found, const Losses& expected) {
  for (size_t step = 0; step < expected.size(); ++step) {
    CAPTURE(step);
    CHECK(found[step] == Approx(expected[step]).epsilon(1e-5));
  }
}

// Trains kSteps steps, and returns the mean of the ranks' losses in each.
Losses train(Chain& model, Engine& engine, const std::function<int(int step, int rank)>& leave_out) {
  Communicator& communicator = engine.communicator();
  at::Tensor losses = torch::zeros({kSteps}, torch::kDouble);
  for (int step = 0; step < kSteps; ++step) {
    const int rank = communicator.rank();
    const at::Tensor loss = loss_of(model, step, rank, leave_out(step, rank), engine.device());
    engine.backward(loss);
    engine.step();
    losses[step] = loss.item<double>();
  }
  communicator.all_reduce(losses, "losses")->wait();
  losses /= kRanks;
  return {losses.data_ptr<double>(), losses.data_ptr<double>() + kSteps};
}

// The same in plain LibTorch.
Losses train_plainly() {
  Chain model(kLayers, kWidth);
  torch::optim::AdamW optimizer(model.parameters(),
                                torch::optim::AdamWOptions(kLearningRate).weight_decay(0.01));
  Losses losses;
  for (int step = 0; step < kSteps; ++step) {
    at::Tensor loss = torch::zeros({});
    for (int rank = 0; rank < kRanks; ++rank)
      loss = loss + loss_of(model, step, rank, left_out(step, rank)) / kRanks;
    optimizer.zero_grad();
    loss.backward();
    optimizer.step();
    losses.push_back(loss.item<double>());
  }
  return losses;
}

// What the ranks of a test use.
struct Setting {
  std::string device;
  std::string comm = "auto";          // ZERORUN_COMM
  std::string registration = "none";  // ZERORUN_NCCL_REGISTER
};

std::vector<Ending> run_two(const Setting& setting,
                            const std::function<std::string(std::shared_ptr<Communicator>)>& body) {
  const int port = free_port();
  return run_processes(kRanks, [&](int rank) {
    at::set_num_threads(1);
    set_rank_variables(rank, kRanks, port, std::chrono::seconds(60));
    setenv("ZERORUN_DEVICE", setting.device.c_str(), 1);
    setenv("ZERORUN_COMM", setting.comm.c_str(), 1);
    setenv("ZERORUN_NCCL_REGISTER", setting.registration.c_str(), 1);
    return body(connect());
  });
}

// ---- ranks that differ in their gradients ----

void check_differing_gradients(const Setting& setting, int stage) {
  CAPTURE(setting.device, setting.comm, setting.registration, stage);
  const auto plain = run_processes(1, [](int) {
    at::set_num_threads(1);
    return text_of(train_plainly());
  });
  const auto endings = run_two(setting, [&](std::shared_ptr<Communicator> communicator) {
    Chain model(kLayers, kWidth);
    Engine engine = make_engine(model, stage, communicator);
    return text_of(train(model, engine, left_out));
  });
  for (const Ending& ending : endings) check_close(losses_in(ending.text), losses_in(plain[0].text));
}

// ---- saves in the background ----

// Returns the numbers of the GPUs on which this process has a context.
std::string contexts(int gpus) {
  using GetState = int(int device, unsigned* flags, int* active);
  void* driver = dlopen(kCudaDriver, RTLD_LAZY | RTLD_LOCAL);
  auto* get_state =
      driver ? reinterpret_cast<GetState*>(dlsym(driver, "cuDevicePrimaryCtxGetState")) : nullptr;
  if (!get_state) return "no cuDevicePrimaryCtxGetState() in the driver";
  std::string found;
  for (int gpu = 0; gpu < gpus; ++gpu) {
    unsigned flags = 0;
    int active = 0;
    if (get_state(gpu, &flags, &active) != 0) return "cuDevicePrimaryCtxGetState() failed";
    if (active) found += (found.empty() ? "" : " ") + std::to_string(gpu);
  }
  return found;
}

// Saves while training goes on. Returns on which GPUs the process has contexts before and after.
std::string save_in_background(const std::shared_ptr<Communicator>& communicator,
                               const std::filesystem::path& folder) {
  const bool is_gpu = communicator->device().location().is_cuda();
  auto seen = [&] { return is_gpu ? contexts(usable_gpus) : "none"; };
  Chain model(kLayers, kWidth);
  Engine engine = make_engine(model, 2, communicator);
  auto leave_out_nothing = [](int, int) { return kLeaveOutNothing; };
  train(model, engine, leave_out_nothing);
  const std::string before = seen();
  engine.save_checkpoint(folder, "tag");
  train(model, engine, leave_out_nothing);  // its updates copy what the file does not have yet
  engine.wait_for_checkpoint();
  return "before: " + before + ", after: " + seen();
}

}  // namespace

TEST_CASE("two ranks on the CPU: a parameter that has no gradient on one rank") {
  const std::string comm = GENERATE("shm", "gloo");
  for (int stage : {0, 2, 3}) check_differing_gradients({.device = "cpu", .comm = comm}, stage);
}

TEST_CASE("two GPUs: a parameter that has no gradient on one rank, from the first backward on") {
  if (usable_gpus < kRanks) return;
  const std::string registration = GENERATE("none", "buffers");
  for (int stage : {0, 2, 3})
    check_differing_gradients({.device = "cuda", .registration = registration}, stage);
}

TEST_CASE("two ranks on the CPU: an asynchronous save") {
  const TemporaryFolder folder;
  const auto endings = run_two({.device = "cpu"}, [&](std::shared_ptr<Communicator> communicator) {
    return save_in_background(communicator, folder / "checkpoint");
  });
  for (const Ending& ending : endings) CHECK(ending.text == "before: none, after: none");
  CHECK(std::filesystem::exists(folder / "checkpoint" / "latest"));
}

TEST_CASE("two GPUs: an asynchronous save makes no context on the other rank's GPU") {
  if (usable_gpus < kRanks) return;
  const TemporaryFolder folder;
  const auto endings = run_two({.device = "cuda"}, [&](std::shared_ptr<Communicator> communicator) {
    return save_in_background(communicator, folder / "checkpoint");
  });
  for (int rank = 0; rank < kRanks; ++rank) {
    const std::string own = std::to_string(rank);
    CHECK(endings[rank].text == "before: " + own + ", after: " + own);
  }
}

TEST_CASE("two GPUs: a first step when LibTorch has cached nearly all memory") {
  if (usable_gpus < kRanks) return;
  const std::string registration = GENERATE("none", "buffers");
  CAPTURE(registration);
  auto run = [&](bool fills) {
    return run_two({.device = "cuda", .registration = registration}, [fills](auto communicator) {
      // 64 MiB of parameters: the gathers of the first iteration, and the memory that the plan made from it
      // reserves, together take more than is left.
      constexpr int64_t kLeft = int64_t{96} << 20;
      Chain model(16, 1024);
      Engine engine = make_engine(model, 3, communicator);
      if (fills) {
        const auto free = static_cast<int64_t>(at::accelerator::getMemoryInfo(engine.device().index()).first);
        at::empty({free - kLeft}, at::TensorOptions().dtype(at::kByte).device(engine.device()));
      }
      return text_of(train(model, engine, [](int, int) { return kLeaveOutNothing; }));
    });
  };
  const auto expected = run(false);
  const auto found = run(true);
  for (int rank = 0; rank < kRanks; ++rank)
    check_close(losses_in(found[rank].text), losses_in(expected[rank].text));
}

}  // namespace zerorun::testing

int main(int argc, char** argv) {
  const auto endings = zerorun::testing::run_processes(1, [](int) {
    std::string reason;
    return std::to_string(zerorun::count_usable_gpus(reason));
  });
  zerorun::testing::usable_gpus = std::atoi(endings.front().text.c_str());
  if (zerorun::testing::usable_gpus < zerorun::testing::kRanks) {
    std::printf("left out: two GPUs: this machine has %d usable ones\n", zerorun::testing::usable_gpus);
  }
  return Catch::Session().run(argc, argv);
}
