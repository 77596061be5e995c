// Tests the memory that building a model takes: eight ranks build a model of 400 MB under a DeferredInit. No
// rank's memory may grow by more than its slice and two buckets.
#include <unistd.h>

#include <catch2/catch.hpp>
#include <cstdlib>
#include <fstream>
#include <sstream>

#include "comm/connect/rendezvous.h"
#include "tests/comm/rank_processes.h"
#include "tests/engine/net.h"
#include "zero/deferred_init.h"

namespace zerorun::testing {
namespace {

constexpr int kRanks = 8;
constexpr int kLayers = 16;
constexpr int64_t kWidth = 2500;
constexpr int64_t kLayerBytes = (kWidth * kWidth + kWidth) * 4;  // 25 MB; all layers have 400 MB

// The value, in bytes, of the line with this key in /proc/self/status.
int64_t status_bytes(const std::string& key) {
  std::ifstream status("/proc/self/status");
  for (std::string line; std::getline(status, line);) {
    if (line.starts_with(key + ":")) return std::stoll(line.substr(key.size() + 1)) * 1024;
  }
  throw std::runtime_error("no " + key + " in /proc/self/status");
}

std::string build(int rank, int port) {
  at::set_num_threads(1);
  set_rank_variables(rank, kRanks, port, std::chrono::minutes(2));
  setenv("ZERORUN_COMM", "gloo", 1);  // over shm, VmRSS counts a shared page for every rank that read it
  InitializeOptions options;
  options.communicator = connect();
  const int64_t start = status_bytes("VmRSS");
  const int64_t start_of_files = status_bytes("RssFile");
  torch::nn::Sequential model;
  {
    DeferredInit scope;
    for (int layer = 0; layer < kLayers; ++layer) model->push_back(torch::nn::Linear(kWidth, kWidth));
  }
  Engine engine = make_engine(*model, R"({"train_micro_batch_size_per_gpu": 1,
      "optimizer": {"type": "AdamW", "params": {"lr": 0.001}},
      "zero_optimization": {"stage": 3, "stage3_param_persistence_threshold": 0}})",
                              options.communicator, options);
  // Without the pages of libraries that were loaded meanwhile. The kernel loads more of them if the page
  // cache has them.
  const int64_t peak = status_bytes("VmHWM") - start - (status_bytes("RssFile") - start_of_files);
  at::Tensor sums = torch::zeros({kLayers}, torch::kDouble);
  for (int layer = 0; layer < kLayers; ++layer) {
    torch::NoGradGuard no_grad;
    sums[layer] = model[layer]->as<torch::nn::Linear>()->weight.square().sum().to(torch::kDouble);
  }
  options.communicator->barrier("the end of the test")->wait();
  std::ostringstream text;
  text << peak << ' ' << std::hexfloat << sums.sum().item<double>();
  return text.str();
}

}  // namespace

TEST_CASE("Building never takes more than a slice and two buckets on any rank") {
  const int port = free_port();
  const auto endings = run_processes(kRanks, [&](int rank) { return build(rank, port); });
  constexpr int64_t kSlice = kLayers * kLayerBytes / kRanks;
  std::vector<std::string> sums;
  for (const Ending& ending : endings) {
    INFO(ending.text);
    REQUIRE(ending.status == 0);
    std::istringstream text(ending.text);
    int64_t peak = 0;
    std::string sum;
    text >> peak >> sum;
    std::printf("peak %.1f MB above the start; slice and two buckets: %.1f MB\n",
                static_cast<double>(peak) / 1e6, static_cast<double>(kSlice + 2 * kLayerBytes) / 1e6);
    CHECK(peak < kSlice + 2 * kLayerBytes);
    sums.push_back(sum);
  }
  CHECK(std::ranges::all_of(sums, [&](const std::string& sum) { return sum == sums[0]; }));
  // Checks the sum of squares of 16 x 2500^2 values that are uniform in (-1/50, 1/50): their variance is
  // 1/7500.
  CHECK(std::strtod(sums[0].c_str(), nullptr) == Approx(kLayers * kWidth * kWidth / 7500.0).epsilon(0.01));
}

}  // namespace zerorun::testing
