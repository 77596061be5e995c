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
#include "tests/comm/message_transports.h"
#include "tests/comm/transport_ranks.h"

namespace zerorun {
namespace {

using Catch::Matchers::Contains;
using Catch::Matchers::StartsWith;
using testing::check_texts;
using testing::for_both;
using testing::kMessagesRight;
using testing::run_connected;
using testing::sleep_ms;
using testing::stay_away;

at::Tensor filled(int64_t numel, int value) {
  return at::full({numel}, static_cast<float>(value));
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
