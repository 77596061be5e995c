// Tests messages between ranks that are processes, over Gloo and shared memory: values, sends without a
// receiver, progress while a rank waits for something else, and errors that name the pair, the number and the
// label.
#include <sys/wait.h>
#include <torch/torch.h>

#include <catch2/catch.hpp>
#include <csignal>

#include "base/error.h"
#include "comm/mesh.h"
#include "comm/notices.h"
#include "tests/comm/message_script.h"
#include "tests/comm/transport_ranks.h"

namespace zerorun {
namespace {

using Catch::Matchers::Contains;
using Catch::Matchers::StartsWith;
using testing::check_texts;
using testing::kMessagesRight;
using testing::run_connected;
using testing::sleep_ms;
using testing::stay_away;

constexpr const char* kMessageTransports[] = {"gloo", "shm"};

void for_both(const std::function<void(const std::string& transport)>& test) {
  for (const char* transport : kMessageTransports) {
    INFO(transport);
    test(transport);
  }
}

at::Tensor bytes(int64_t count) {
  return at::empty({count}, at::TensorOptions().dtype(at::kByte));
}

at::Tensor filled(int64_t numel, int value) {
  return at::full({numel}, static_cast<float>(value));
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

TEST_CASE("messages: every message is a plain copy, 2 to 5 processes") {
  for_both([](const std::string& transport) {
    for (int count = 2; count <= 5; ++count) {
      check_texts(run_connected({transport, count},
                                [](auto& world, int) { return testing::run_message_script(*world); }),
                  kMessagesRight);
    }
  });
}

TEST_CASE("messages: in every group of a mesh, whose collectives and messages do not mix") {
  for_both([](const std::string& transport) {
    check_texts(run_connected({transport, 6},
                              [](auto& world, int) -> std::string {
                                const Mesh mesh(world, {.data = 1, .tensor = 2, .pipeline = 3});
                                for (const MeshAxis axis : {MeshAxis::pipeline, MeshAxis::tensor}) {
                                  std::string text = testing::run_message_script(mesh.along(axis));
                                  if (text != kMessagesRight) return text;
                                }
                                return testing::run_message_script(mesh.world());
                              }),
                kMessagesRight);
  });
}

TEST_CASE("messages: from 0 bytes to 64 MiB") {
  for_both([](const std::string& transport) {
    check_texts(run_connected({transport, 2},
                              [](auto& world, int) {
                                return testing::send_around(
                                    *world, {0, 1, 4095, 4096, 100'000, 1 << 20, (8 << 20) + 1, 64 << 20}, 2);
                              }),
                kMessagesRight);
  });
}

TEST_CASE("messages: several groups are in flight at once") {
  for_both([](const std::string& transport) {
    const auto endings = run_connected({transport, 4}, [](auto& world, int rank) -> std::string {
      const Mesh mesh(world, {.data = 2, .tensor = 2});
      Communicator& along_data = mesh.data();
      Communicator& along_tensor = mesh.along(MeshAxis::tensor);
      for (int round = 0; round < 20; ++round) {
        std::vector<std::unique_ptr<Work>> works;
        std::vector<std::pair<at::Tensor, int>> received;
        for (Communicator* group : {&along_data, &along_tensor}) {
          const int other = 1 - group->rank();
          received.emplace_back(at::empty({2000}), group->rank_in_job(other));
          works.push_back(group->receive(received.back().first, other, "same label"));
        }
        for (Communicator* group : {&along_tensor, &along_data})
          works.push_back(group->send(filled(2000, rank), 1 - group->rank(), "same label"));
        for (const auto& work : works) work->wait();
        for (const auto& [tensor, from] : received) {
          if (tensor[1999].template item<int>() != from) return "wrong value";
        }
      }
      return "went through";
    });
    check_texts(endings);
  });
}

TEST_CASE("messages: sends without a receiver return, and the values are those at the time of the send") {
  for_both([](const std::string& transport) {
    const auto endings =
        run_connected({transport, 2, std::chrono::seconds(20)}, [](auto& world, int rank) -> std::string {
          const auto notices = world->open_notices();
          const Deadline deadline(std::chrono::seconds(15));
          constexpr int kCount = 40;
          if (rank == 0) {
            at::Tensor value = at::empty({100'000});
            for (int i = 0; i < kCount; ++i) world->send(value.fill_(i), 1, "early")->wait();
            value.fill_(-1);
            notices->post("sent", "", deadline);
            world->barrier("the end")->wait();
            return "went through";
          }
          if (!notices->await("sent", deadline)) return "a send waited for its receiver";
          for (int i = 0; i < kCount; ++i) {
            at::Tensor value = at::empty({100'000});
            world->receive(value, 0, "early")->wait();
            if (!value.eq(i).all().template item<bool>()) return "wrong value";
          }
          world->barrier("the end")->wait();
          return "went through";
        });
    check_texts(endings);
  });
}

TEST_CASE("messages: what a rank sent before it left is received") {
  for_both([](const std::string& transport) {
    const auto endings =
        run_connected({transport, 2, std::chrono::seconds(20)}, [](auto& world, int rank) -> std::string {
          if (rank == 0) {
            world->send(filled(5000, 7), 1, "the last")->wait();
            return "went through";  // its process ends
          }
          sleep_ms(700);
          at::Tensor value = at::empty({5000});
          world->receive(value, 0, "the last")->wait();
          return value.eq(7).all().template item<bool>() ? "went through" : "wrong value";
        });
    check_texts(endings);
  });
}

TEST_CASE("messages: a rank that waits in another group receives what it expects") {
  for_both([](const std::string& transport) {
    const auto endings =
        run_connected({transport, 4, std::chrono::seconds(20)}, [](auto& world, int rank) -> std::string {
          const Mesh mesh(world, {.data = 2, .tensor = 2});  // data: 0 2, 1 3; tensor: 0 1, 2 3
          const auto notices = world->open_notices();
          const Deadline deadline(std::chrono::seconds(15));
          constexpr int kCount = 2 * static_cast<int>(kMostMessages);
          at::Tensor sum = at::ones({10});
          if (rank == 0) {
            std::vector<at::Tensor> values;
            std::vector<std::unique_ptr<Work>> receipts;
            for (int i = 0; i < kCount; ++i) {
              values.push_back(at::empty({3000}));
              receipts.push_back(mesh.data().receive(values.back(), 1, "ahead"));
            }
            mesh.along(MeshAxis::tensor).all_reduce(sum, "late")->wait();
            for (const auto& receipt : receipts) receipt->wait();
            for (int i = 0; i < kCount; ++i) {
              if (!values[i].eq(i).all().template item<bool>()) return "wrong value";
            }
          }
          if (rank == 2) {  // more than there is room for: it goes on only if rank 0 receives meanwhile
            for (int i = 0; i < kCount; ++i) mesh.data().send(filled(3000, i), 0, "ahead")->wait();
            notices->post("rank 2 is done", "", deadline);
          }
          if (rank == 1) {
            if (!notices->await("rank 2 is done", deadline)) return "rank 2 was not served";
            mesh.along(MeshAxis::tensor).all_reduce(sum, "late")->wait();
          }
          return "went through";
        });
    check_texts(endings);
  });
}

TEST_CASE("messages: beyond the room a send waits until its receiver comes, who may wait elsewhere") {
  for_both([](const std::string& transport) {
    const auto endings =
        run_connected({transport, 2, std::chrono::seconds(20)}, [](auto& world, int rank) -> std::string {
          const int count = 3 * static_cast<int>(kMostMessages);
          std::vector<at::Tensor> values;
          std::vector<std::unique_ptr<Work>> receipts;
          if (rank == 0) {
            for (int i = 0; i < count; ++i) world->send(filled(50, i), 1, "x")->wait();
          } else {
            sleep_ms(300);
            for (int i = 0; i < count; ++i) {
              values.push_back(at::empty({50}));
              receipts.push_back(world->receive(values.back(), 0, "x"));
            }
          }
          world->barrier("between")->wait();
          for (int i = 0; i < static_cast<int>(values.size()); ++i) {
            receipts[i]->wait();
            if (!values[i].eq(i).all().template item<bool>()) return "wrong value";
          }
          return "went through";
        });
    check_texts(endings);
  });
}

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

TEST_CASE("messages: two ranks that wait for each other end before the deadline") {
  for (const bool collective : {false, true}) {
    const auto endings = run_connected({.transport = "shm", .count = 2, .timeout = std::chrono::seconds(60)},
                                       [&](auto& world, int rank) -> std::string {
                                         at::Tensor value = at::ones({4});
                                         if (rank == 0 && collective) world->barrier("the end")->wait();
                                         world->receive(value, 1 - rank, "from the other")->wait();
                                         return "no error";
                                       });
    CHECK_THAT(endings[1].text,
               Contains("receive of from the other (message 1 from rank 0 to rank 1)") &&
                   Contains(collective ? "barrier of the end"
                                       : "receive of from the other (message 1 from rank 1 to rank 0)"));
    CHECK(endings[1].seconds < 20);
  }
}

TEST_CASE("messages: groups that are let go while messages are on the way give back what they held") {
  for_both([](const std::string& transport) {
    const auto endings =
        run_connected({transport, 2, std::chrono::seconds(20)}, [](auto& world, int rank) -> std::string {
          for (int round = 0; round < 30; ++round) {
            const auto group = world->split({{"both", {0, 1}}});
            at::Tensor got = at::empty({100'000});
            auto receipt = group->receive(got, 1 - rank, "x");
            for (int i = 0; i < 3; ++i) group->send(filled(100'000, i + rank), 1 - rank, "x")->wait();
            receipt->wait();
            for (int i = 1; i < 3; ++i) group->receive(got, 1 - rank, "x")->wait();
            if (!got.eq(2 + 1 - rank).all().template item<bool>()) return "wrong value";
            if (world->scratch_bytes() > 8 << 20) return std::to_string(world->scratch_bytes());
          }
          world->barrier("the end")->wait();
          return "went through";
        });
    check_texts(endings);
  });
}

}  // namespace zerorun
