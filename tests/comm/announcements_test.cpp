// Tests that a rank that cannot go on ends the waits of all ranks, in all groups and for messages, with its
// own text: ranks that are processes, over Gloo and shared memory.
#include <torch/torch.h>

#include <algorithm>
#include <catch2/catch.hpp>

#include "base/error.h"
#include "comm/mesh.h"
#include "tests/comm/transport_ranks.h"

namespace zerorun {
namespace {

using Catch::Matchers::Contains;
using Catch::Matchers::EndsWith;
using testing::ConnectedRanks;
using testing::sleep_ms;
using testing::TransportEndings;

using Clock = std::chrono::steady_clock;
constexpr MeshSizes kDataTensorPipeline{.data = 2, .tensor = 1, .pipeline = 3};  // data: 0 1, 2 3, 4 5
constexpr int kRanks = 6;

std::string seconds_since(Clock::time_point begin) {
  return std::to_string(std::chrono::duration<double>(Clock::now() - begin).count());
}

// What rank `rank` waits for: none of them waits for the rank that fails in particular, but the last one.
void wait_for_others(const Mesh& mesh, int rank) {
  Communicator& stages = mesh.along(MeshAxis::pipeline);
  at::Tensor value = at::ones({4});
  if (rank == 0) stages.receive(value, 1, "gradients")->wait();
  if (rank == 1) mesh.data().all_reduce(value, "bucket 3")->wait();
  if (rank == 2) mesh.world().all_reduce(value, "the norm")->wait();
  if (rank == 3) {
    for (int message = 0; message < 100; ++message) stages.send(value, 2, "activations")->wait();
  }
  if (rank == 4) stages.receive(value, 1, "activations")->wait();
}

// Rank 5 announces its failure, and stays: that its connections are lost ends no wait. The other ranks report
// how long they have waited since.
std::string end_together(std::shared_ptr<Communicator>& world, int rank, bool through_lone_group) {
  const Mesh mesh(world, kDataTensorPipeline);
  world->barrier("the start")->wait();
  const Clock::time_point begin = Clock::now();
  if (rank == 5) {
    sleep_ms(300);
    (through_lone_group ? mesh.along(MeshAxis::tensor) : mesh.world()).announce_failure("a fault of layer 7");
    sleep_ms(6000);
    return "stayed";
  }
  try {
    wait_for_others(mesh, rank);
  } catch (const CommError& error) {
    const std::string later = [&]() -> std::string {
      try {
        world->barrier("another wait")->wait();
      } catch (const CommError& next) {
        return next.what();
      }
      return "none";
    }();
    return seconds_since(begin) + " " + error.what() + "\n" + later;
  }
  return "went through";
}

}  // namespace

TEST_CASE("announcements: a failure ends all waits of all ranks in all groups with the failed rank's text") {
  for (const bool through_lone_group : {false, true}) {
    const ConnectedRanks ranks{.count = kRanks, .timeout = std::chrono::seconds(60)};
    for (const auto& [transport, endings] : testing::run_over_both(
             ranks, [&](auto&world, int rank) { return end_together(world, rank, through_lone_group); })) {
      CAPTURE(transport, through_lone_group);
      for (int rank = 0; rank < kRanks - 1; ++rank) {
        const std::string& text = endings[rank].text;
        CAPTURE(rank, text, endings[rank].status);
        CHECK_THAT(text, Contains(" rank 5 cannot go on: a fault of layer 7\n"));
        CHECK_THAT(text, EndsWith("\nrank 5 cannot go on: a fault of layer 7"));
        // Over Gloo: announced after 0.3 s, looked for every 0.5 s; rank 0 stays a second longer.
        CHECK(std::strtod(text.c_str(), nullptr) < (rank == 0 ? 4.5 : 3));
      }
    }
  }
}

TEST_CASE("announcements: ranks have the text of a rank that has ended since, rank 0 too") {
  for (const int culprit : {0, 2}) {
    const ConnectedRanks ranks{.count = 4, .timeout = std::chrono::seconds(60)};
    for (const auto& [transport, endings] :
         testing::run_over_both(ranks, [&](auto&world, int rank) -> std::string {
           const Mesh mesh(world, {.data = 2, .tensor = 2});  // data: 0 2, 1 3; tensor: 0 1, 2 3
           world->barrier("the start")->wait();
           if (rank == culprit) {
             world->announce_failure("the first fault");
             return "ended";
           }
           at::Tensor value = at::ones({4});
           try {
             (rank == 3 ? mesh.data() : mesh.along(MeshAxis::tensor)).all_reduce(value, "a sum")->wait();
             if (rank != 3) mesh.data().all_reduce(value, "a sum")->wait();
             world->barrier("the end")->wait();
           } catch (const CommError& error) {
             world->announce_failure(error.what());  // as the engine does
             throw;
           }
           return "went through";
         })) {
      for (int rank = 0; rank < 4; ++rank) {
        if (rank == culprit) continue;
        CAPTURE(transport, culprit, rank);
        CHECK(endings[rank].text ==
              "CommError: rank " + std::to_string(culprit) + " cannot go on: the first fault");
        CHECK(endings[rank].seconds < 20);
      }
    }
  }
}

}  // namespace zerorun
