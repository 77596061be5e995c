// A program for tests of timelines: trains a small model with the config of its first argument. The second
// one is the number of steps, the third what happens: "end", or of rank 1 after these steps "kill" (by
// SIGKILL), "abandon" (it sleeps, so the others miss their deadline), or of all ranks "wait" (until a file
// named go.N exists for rank N).
#include <torch/torch.h>
#include <unistd.h>
#include <zerorun/zerorun.h>

#include <chrono>
#include <csignal>
#include <filesystem>
#include <string>
#include <thread>

namespace {

void pause_briefly() {
  std::this_thread::sleep_for(std::chrono::milliseconds(20));
}

void mark(const std::string& name) {
  std::fclose(std::fopen(name.c_str(), "w"));
}

}  // namespace

int main(int argc, char** argv) {
  return zerorun::run_program([&] {
    if (argc != 4) throw zerorun::UserError("expected CONFIG STEPS ACTION");
    torch::manual_seed(1);
    torch::nn::Sequential model(torch::nn::Linear(32, 64), torch::nn::ReLU(), torch::nn::Linear(64, 8));
    zerorun::Engine engine = zerorun::initialize(*model, argv[1]);
    const int rank = engine.communicator().rank();
    const auto step = [&] {
      const at::Tensor x = torch::randn({engine.config().batch.micro_batch_size_per_gpu, 32});
      engine.backward(model->forward(x).square().mean());
      engine.step();
    };
    for (int i = std::stoi(argv[2]); i > 0; --i) step();
    const std::string action = argv[3];
    if (action == "kill" && rank == 1) ::kill(::getpid(), SIGKILL);
    if (action == "abandon" && rank == 1) {
      for (;;) pause_briefly();
    }
    if (action == "kill" || action == "abandon") step();
    if (action == "wait") {
      mark("pid." + std::to_string(rank) + "." + std::to_string(::getpid()));
      while (!std::filesystem::exists("go." + std::to_string(rank))) pause_briefly();
    }
    return 0;
  });
}
