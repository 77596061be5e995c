// Tests that the launcher refuses jobs whose ranks would not find a GPU each, with fakes of the driver's
// libraries.
#include <unistd.h>

#include <catch2/catch.hpp>
#include <string>
#include <utility>
#include <vector>

#include "launcher/hosts/gpu_question.h"
#include "tests/launcher/launched.h"

using Catch::Matchers::Contains;
using zerorun::testing::Launched;
using zerorun::testing::Result;
using zerorun::testing::Setup;
using namespace zerorun::launcher;

namespace {

using Variables = std::vector<std::pair<std::string, std::string>>;

Result run(std::vector<std::string> options, Variables variables) {
  variables.emplace_back("LD_LIBRARY_PATH", ZERORUN_FAKE_DRIVER_FOLDER);
  // Launched sets it, so that other tests run more ranks than a machine has GPUs.
  variables.emplace_back("NCCL_MULTI_RANK_GPU_ENABLE", "0");
  return Launched({.options = std::move(options),
                   .script = "echo started $RANK/$WORLD_SIZE",
                   .environment = std::move(variables)})
      .finish();
}

std::string error_of(std::vector<std::string> options, Variables variables) {
  const Result result = run(std::move(options), std::move(variables));
  CHECK(result.exit_code == 2);
  CHECK(result.out.empty());
  return result.err;
}

GpuAnswer answer(int usable) {
  return {.driver = true, .expected = true, .found = usable, .usable = usable, .reason = "", .silent = {}};
}

}  // namespace

TEST_CASE("gpus: the reasons for which ranks must not start") {
  CHECK(refusal(answer(8), {.ranks = 8}).empty());
  CHECK(refusal(answer(8), {.ranks = 2}).empty());
  GpuAnswer seven = answer(7);
  seven.silent = {"GPU 3"};
  CHECK(refusal(seven, {.ranks = 8}) ==
        "8 ranks, 7 usable GPUs (GPU 3 does not answer): --num_gpus 7, or --device cpu");
  seven.silent = {"GPU 3", "GPU 5"};
  CHECK_THAT(refusal(seven, {.ranks = 8}), Contains("(GPU 3, GPU 5 do not answer)"));
  CHECK(refusal(answer(1), {.ranks = 2}) == "2 ranks, 1 usable GPU: --num_gpus 1, or --device cpu");
  CHECK(refusal(answer(1), {.ranks = 2, .visible = "5"}) ==
        "2 ranks, 1 usable GPU (CUDA_VISIBLE_DEVICES=5): --num_gpus 1, or --device cpu");
  CHECK(refusal(answer(1), {.ranks = 2, .slots_named = true}) ==
        "2 ranks, 1 usable GPU: name 1 slot, or --device cpu");
  CHECK(refusal(answer(1), {.ranks = 2, .may_share = true}).empty());

  GpuAnswer broken = answer(0);
  broken.reason = "the NVIDIA driver's cuInit says CUDA_ERROR_UNKNOWN";
  CHECK(refusal(broken, {.ranks = 1, .may_share = true}) ==
        "1 rank, no usable GPU: the NVIDIA driver's cuInit says CUDA_ERROR_UNKNOWN: --device cpu (or "
        "ZERORUN_DEVICE=cpu) trains on the CPU");
  broken.expected = false;  // a driver on a machine without GPUs, or the user hides them
  CHECK(refusal(broken, {.ranks = 4}).empty());
  broken.found = 1;  // one that is too old
  CHECK_FALSE(refusal(broken, {.ranks = 1}).empty());
}

TEST_CASE("gpus: more ranks than usable GPUs are refused before a rank starts") {
  CHECK(error_of({"--num_gpus", "2"}, {{"FAKE_GPUS", "1"}}) ==
        "zerorun: 2 ranks, 1 usable GPU: --num_gpus 1, or --device cpu\n");
  CHECK(error_of({"--num_gpus", "8"}, {{"FAKE_GPUS", "7"}, {"FAKE_NVML_GPUS", "8"}, {"FAKE_LOST", "3"}}) ==
        "zerorun: 8 ranks, 7 usable GPUs (GPU 3 does not answer): --num_gpus 7, or --device cpu\n");
  CHECK(error_of({"--num_gpus", "3"}, {{"FAKE_GPUS", "8"}, {"CUDA_VISIBLE_DEVICES", "4,5"}}) ==
        "zerorun: 3 ranks, 2 usable GPUs (CUDA_VISIBLE_DEVICES=4,5): --num_gpus 2, or --device cpu\n");
}

TEST_CASE("gpus: ranks that find a GPU each, or are told to train on the CPU, start") {
  Result result = run({"--num_gpus", "2"}, {{"FAKE_GPUS", "2"}});
  CHECK(result.exit_code == 0);
  CHECK(result.err == "zerorun: 2 GPUs found for 2 ranks\n");
  CHECK_THAT(result.out, Contains("started 0/2\n") && Contains("started 1/2\n"));
  CHECK(run({"--num_gpus", "2", "--device", "cpu"}, {{"FAKE_GPUS", "1"}}).exit_code == 0);
  CHECK(run({"--num_gpus", "2"}, {{"FAKE_GPUS", "1"}, {"ZERORUN_DEVICE", "cpu"}}).exit_code == 0);
  CHECK(run({"--num_gpus", "2"}, {{"FAKE_GPUS", "2"}, {"CUDA_VISIBLE_DEVICES", ""}}).exit_code == 0);
  CHECK(run({"--num_gpus", "2"}, {{"FAKE_GPUS", "0"}}).exit_code == 0);
}

TEST_CASE("gpus: GPUs that cannot be used are an error, and the CPU is not used instead") {
  CHECK_THAT(error_of({"--num_gpus", "1"}, {{"FAKE_GPUS", "1"}, {"FAKE_DRIVER", "12040"}}),
             Contains("1 rank, no usable GPU: the NVIDIA driver supports CUDA 12.4 at most") &&
                 Contains("--device cpu"));
}

TEST_CASE("gpus: a driver that does not answer is an error, and the launcher does not wait for ever") {
  CHECK_THAT(error_of({"--num_gpus", "1", "--timeout", "1"}, {{"FAKE_GPUS", "1"}, {"FAKE_INIT", "hang"}}),
             Contains("the NVIDIA driver has not answered for 5 s") && Contains("--device cpu"));
  CHECK_THAT(
      error_of({"--num_gpus", "1"}, {{"FAKE_GPUS", "1"}, {"FAKE_INIT", "crash"}}),
      Contains("asking the NVIDIA driver for its GPUs failed: killed by signal 6 (SIGABRT): --device cpu"));
}

TEST_CASE("gpus: on several hosts, the host that has too few is refused, and the job ends") {
  const std::string port = std::to_string(21000 + ::getpid() % 9000);
  const auto start = [&](const std::string& node, const std::string& gpus) {
    return Setup{.options = {"--num_nodes", "2", "--num_gpus", "2", "--no_ssh", "--node_rank", node,
                             "--master_addr", "127.0.0.1", "--master_port", port, "--grace", "0.5"},
                 .script = "sleep 60",
                 .environment = {{"FAKE_GPUS", gpus},
                                 {"LD_LIBRARY_PATH", ZERORUN_FAKE_DRIVER_FOLDER},
                                 {"NCCL_MULTI_RANK_GPU_ENABLE", "0"}}};
  };
  Launched first(start("0", "2"));
  Launched second(start("1", "1"));
  const Result of_second = second.finish();
  const Result of_first = first.finish();
  CHECK(of_second.exit_code == 2);
  CHECK_THAT(of_second.err, Contains("2 ranks, 1 usable GPU: --num_gpus 1, or --device cpu"));
  CHECK(of_first.exit_code == 2);
  CHECK_THAT(of_first.err, Contains("2 ranks, 1 usable GPU: --num_gpus 1, or --device cpu"));
}
