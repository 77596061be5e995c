// Tests errors of messages between ranks that are processes, over Gloo and shared memory, which name the
// pair, the number and the label.
#include <torch/torch.h>

#include <catch2/catch.hpp>
#include <csignal>
#include <functional>
#include <string>

#include "base/error.h"
#include "comm/mesh.h"
#include "comm/notices.h"
#include "tests/comm/message_transports.h"
#include "tests/comm/transport_ranks.h"

namespace zerorun {
namespace {

using Catch::Matchers::Contains;
using Catch::Matchers::StartsWith;
using testing::check_texts;
using testing::for_both;
using testing::run_connected;
using testing::sleep_ms;
using testing::stay_away;

at::Tensor bytes(int64_t count) {
  return at::empty({count}, at::TensorOptions().dtype(at::kByte));
}

// Stays a while after an error: a rank that ended at once would be named by the others.
std::string stay_after_error(const std::function<std::string()>& body) {
  try {
    return body();
  } catch (const CommError&) {
    sleep_ms(1000);
    throw;
  }
}

}  // namespace

TEST_CASE("messages: a send that finds no room by the deadline says how much there is") {
  for_both([](const std::string& transport) {
    for (const bool large : {false, true}) {
      const auto endings = run_connected(
          {.transport = transport, .count = 2, .timeout = std::chrono::seconds(3), .awaited = 1},
          [&](auto& world, int rank) -> std::string {
            if (rank == 1) stay_away();
            const int count = large ? 3 : static_cast<int>(kMostMessages);
            at::Tensor value = bytes(large ? 300 << 20 : 4);
            for (int i = 0; i < count; ++i) world->send(value, 1, "x")->wait();
            world->send(value, 1, "one more")->wait();
            return "no error";
          });
      const std::string number = large ? "4" : "65";
      CHECK_THAT(endings[0].text,
                 StartsWith("CommError: send of one more (message " + number +
                            " from rank 0 to rank 1): rank 1 has not received earlier messages, of which at "
                            "most 64, and at most 1024 MiB, may be on the way; it made no room within 3 s"));
    }
  });
}

TEST_CASE("messages: a message that is late is named, with what its sender waits for") {
  for_both([](const std::string& transport) {
    const auto endings = run_connected(
        {.transport = transport, .count = 4, .timeout = std::chrono::milliseconds(2500), .awaited = 2},
        [](auto& world, int rank) -> std::string {
          const Mesh mesh(world, {.data = 1, .tensor = 2, .pipeline = 2});  // pipeline: 0 2, 1 3
          at::Tensor value = at::ones({4});
          if (rank == 2) {
            mesh.along(MeshAxis::pipeline).send(value, 0, "activations of micro-batch 1")->wait();
            stay_away();
          }
          if (rank == 0) {
            return stay_after_error([&] {
              for (const char* label : {"activations of micro-batch 1", "activations of micro-batch 2"})
                mesh.along(MeshAxis::pipeline).receive(value, 1, label)->wait();
              return std::string("no error");
            });
          }
          if (rank == 1) {
            sleep_ms(500);
            mesh.along(MeshAxis::tensor).receive(value, 0, "from the one that waits")->wait();
          }
          stay_away();
        });
    CHECK_THAT(
        endings[0].text,
        StartsWith("CommError: receive of activations of micro-batch 2 in the pipeline group at tensor 0 "
                   "(ranks 0, 2) (message 2 from rank 2 to rank 0): rank 2 did not send it within 2.5 s"));
    CHECK_THAT(
        endings[1].text,
        StartsWith("CommError: receive of from the one that waits in the tensor group at pipeline 0 (ranks "
                   "0, 1) (message 1 from rank 0 to rank 1): rank 0 did not send it within 2.5 s") &&
            Contains("; rank 0 had failed before: receive of activations of micro-batch 2"));
  });
}

TEST_CASE("messages: a sender that was killed is named at once") {
  for_both([](const std::string& transport) {
    const testing::ConnectedRanks ranks{.transport = transport, .count = 2, .first_rank = 1};
    const auto endings = run_connected(ranks, [](auto& world, int rank) -> std::string {
      world->barrier("the start")->wait();
      at::Tensor value = at::ones({4});
      if (rank == 1) {
        sleep_ms(700);
        raise(SIGKILL);
      }
      world->receive(value, 1, "activations")->wait();
      return "no error";
    });
    CHECK(WIFSIGNALED(endings[0].status));
    CHECK_THAT(
        endings[1].text,
        StartsWith("CommError: receive of activations (message 1 from rank 1 to rank 0): ") &&
            Contains(transport == "shm" ? "rank 1 has ended (process " : "lost the connection to rank 1"));
    CHECK(endings[1].seconds - endings[0].seconds < 5);
  });
}

TEST_CASE("messages: a receiver that was killed is named by a send without room") {
  for_both([](const std::string& transport) {
    const testing::ConnectedRanks ranks{.transport = transport, .count = 2, .first_rank = 1};
    const auto endings = run_connected(ranks, [](auto& world, int rank) -> std::string {
      world->barrier("the start")->wait();
      if (rank == 1) {
        sleep_ms(700);
        raise(SIGKILL);
      }
      for (int i = 0; i <= static_cast<int>(kMostMessages); ++i) world->send(at::ones({4}), 1, "x")->wait();
      return "no error";
    });
    CHECK_THAT(endings[1].text, StartsWith("CommError: send of x (message 65 from rank 0 to rank 1): ") &&
                                    Contains(transport == "shm" ? "rank 1 has ended (process "
                                                                : "lost the connection to rank 1"));
    CHECK(endings[1].seconds - endings[0].seconds < 5);
  });
}

TEST_CASE("messages: a send and a receive that differ are an error on both ranks") {
  struct Row {
    int64_t numel;
    at::ScalarType dtype;
    const char* label;
    std::string words;
  };
  const Row rows[] = {{5, at::kFloat, "a", "receives a (5 elements of Float)"},
                      {0, at::kFloat, "a", "receives a (0 elements of Float)"},
                      {4, at::kLong, "a", "receives a (4 elements of Long)"},
                      {4, at::kFloat, "b", "receives b (4 elements of Float)"}};
  for_both([&](const std::string& transport) {
    for (const Row& row : rows) {
      for (const bool sender_first : {true, false}) {
        const auto endings = run_connected(
            {transport, 2, std::chrono::seconds(20)}, [&](auto& world, int rank) -> std::string {
              if ((rank == 0) != sender_first) sleep_ms(200);
              return stay_after_error([&] {
                if (rank == 0) {
                  world->send(at::ones({4}), 1, "right")->wait();
                  world->send(at::ones({4}), 1, "a")->wait();
                  world->receive(at::ones({4}), 1, "an answer")->wait();  // the sender may be told later
                } else {
                  world->receive(at::ones({4}), 0, "right")->wait();
                  world->receive(at::ones({row.numel}, row.dtype), 0, row.label)->wait();
                }
                return std::string("no error");
              });
            });
        check_texts(endings,
                    "CommError: ranks disagree on message 2 from rank 0 to rank 1: rank 0 sends a (4 "
                    "elements of Float), rank 1 " +
                        row.words);
        for (const auto& ending : endings) CHECK(ending.seconds < 10);
      }
    }
  });
}

TEST_CASE("messages: a disagreement is told to a sender that waits for a collective of another group") {
  const auto endings =
      run_connected({"shm", 4, std::chrono::seconds(30)}, [](auto& world, int rank) -> std::string {
        const Mesh mesh(world, {.data = 2, .tensor = 2});
        if (rank == 1) sleep_ms(3000);
        return stay_after_error([&] {
          if (rank == 0) {
            mesh.data().send(at::ones({4}), 1, "a")->wait();
            mesh.along(MeshAxis::tensor).barrier("never")->wait();
          }
          if (rank == 2) mesh.data().receive(at::ones({4}), 0, "b")->wait();
          return std::string("no error");
        });
      });
  for (int rank : {0, 2})
    CHECK_THAT(endings[rank].text, StartsWith("CommError: ranks disagree on message 1 from rank 0 to rank 2: "
                                              "rank 0 sends a in the data group"));
}

}  // namespace zerorun
