// Tests that bench_step compares meshes on equal terms, and the communicator with which it silences sums. The
// times mean nothing here.
#include <torch/torch.h>

#include <catch2/catch.hpp>
#include <cmath>
#include <nlohmann/json.hpp>
#include <string>

#include "benchmarks/silenceable_communicator.h"
#include "comm/mesh.h"
#include "tests/comm/collective_script.h"
#include "tests/comm/message_script.h"
#include "tests/samples/programs_support.h"
#include "tests/support/expectations.h"
#include "tests/support/rank_threads.h"

namespace zerorun::testing {
namespace {

using nlohmann::json;

const std::string kBench =
    kBin +
    "bench_step --layers 1 --hidden 16 --heads 2 --vocab 11 --seq 8 --micro-batch 2 --rounds 1 --json ";

json measured(const std::string& options) {
  const TemporaryFolder folder;
  const Outcome outcome = run(folder, kBench + options);
  INFO(outcome.out << outcome.err);
  REQUIRE(outcome.exit_code == 0);
  return json::parse(outcome.out);
}

}  // namespace

TEST_CASE("a silenceable communicator has the collectives and messages of its groups") {
  run_ranks(4, [](std::shared_ptr<Communicator> real) {
    const Mesh mesh(std::make_shared<SilenceableCommunicator>(real, true), {.data = 2, .tensor = 2});
    expect(mesh.data().group_of_ranks().name.starts_with("data group at tensor "), "the group's name");
    for (const MeshAxis axis : {MeshAxis::data, MeshAxis::tensor}) {
      const std::string found = run_collective_script(mesh.along(axis));
      expect(found == script_success(2), found);
      const std::string messages = run_message_script(mesh.along(axis));
      expect(messages == kMessagesRight, messages);
    }
    const std::string messages = run_message_script(mesh.world());
    expect(messages == kMessagesRight, messages);
  });
}

TEST_CASE("silenced sums leave this rank's values, and other ranks of the job communicate") {
  run_ranks(4, [](std::shared_ptr<Communicator> real) {
    const Mesh mesh(std::make_shared<SilenceableCommunicator>(real, true), {.data = 2, .tensor = 2});
    auto& group = dynamic_cast<SilenceableCommunicator&>(mesh.along(MeshAxis::tensor));
    group.silence_sums();
    for (const int64_t numel : {int64_t{3}, kLargeSum}) {
      const at::Tensor values = at::full({numel}, real->rank() + 1.0);
      group.all_reduce(values, "values")->wait();
      expect(values.eq(real->rank() + 1).all().item<bool>(), "a silent sum");
      mesh.data().all_reduce(values, "values")->wait();
      expect(values.eq(2 * (real->rank() % 2) + 4).all().item<bool>(), "a sum of the other group");
    }
    const at::Tensor gathered = at::zeros({2}), own = at::full({1}, mesh.coordinates().tensor + 5.0);
    group.all_gather(gathered, own, "parts")->wait();
    expect(gathered[0].item<float>() == 5 && gathered[1].item<float>() == 6, "a gather");
  });
}

TEST_CASE("bench_step --mesh measures all stages beside data ranks, and counts what ranks send") {
  for (const std::string mesh : {"--mesh data=1,tensor=2", "--mesh tensor=2 --ranks 4"}) {
    CAPTURE(mesh);
    const json result = measured(mesh);
    const int data = result["mesh"]["data"], ranks = result["ranks"];
    CHECK(ranks == 2 * data);
    CHECK(result["samples"] == 2 * ranks);
    REQUIRE(result["stages"].size() == 4);
    const double parameters = result["parameters"];
    for (int stage = 0; stage < 4; ++stage) {
      const json& row = result["stages"][stage];
      CHECK(row["stage"] == stage);
      for (const char* time : {"data_ms", "mesh_ms", "without_all_reduces_ms", "mesh_cpu_ms"})
        CHECK(row[time].get<double>() > 0);
      // Each rank sends (N - 1) / N of the padded parameters twice; stage 3 on a host sends them less often.
      CHECK(row["sent_by_data_ranks"].get<double>() > parameters * (ranks - 1) / ranks);
      CHECK((row["sent_on_mesh_among_data_ranks"].get<double>() > parameters / 4) == (data > 1));
      CHECK(row["sent_on_mesh_among_data_ranks"].get<double>() < row["sent_by_data_ranks"].get<double>());
      // Two sums of the activations in forward and backward of the layer, and the embedding's.
      CHECK(row["sent_on_mesh_among_tensor_ranks"].get<double>() > 5.0 * 2 * 2 * 8 * 16);
    }
  }
}

TEST_CASE("bench_step refuses a mesh that is none") {
  const TemporaryFolder folder;
  for (const auto& [mesh, text] : {std::pair("data=2", "with two tensor ranks or more"),
                                   std::pair("data=2,tensor=2", "does not fit 2 ranks"),
                                   std::pair("tensor=2x", "expected sizes such as data=1,tensor=2"),
                                   std::pair("tensor", "expected sizes such as data=1,tensor=2")}) {
    CAPTURE(mesh);
    const Outcome outcome = run(folder, kBench + "--mesh " + mesh);
    CHECK(outcome.exit_code == 2);
    CHECK(count(outcome.err, text) == 1);
  }
}

}  // namespace zerorun::testing
