// Tests messages between ranks that are threads: values, the bound of what is on the way, and errors.
#include <torch/torch.h>

#include <catch2/catch.hpp>
#include <thread>

#include "base/error.h"
#include "comm/mesh.h"
#include "tests/comm/message_script.h"
#include "tests/support/rank_threads.h"

namespace zerorun {
namespace {

using Catch::Matchers::Contains;
using Catch::Matchers::StartsWith;
using std::chrono::milliseconds;

// Returns each rank's text, or its CommError.
std::vector<std::string> texts_of_ranks(int world_size, milliseconds timeout,
                                        const std::function<std::string(Communicator&)>& body) {
  std::vector<std::string> texts(static_cast<size_t>(world_size));
  testing::run_ranks(
      world_size,
      [&](const std::shared_ptr<Communicator>& communicator) {
        std::string& text = texts[static_cast<size_t>(communicator->rank())];
        try {
          text = body(*communicator);
        } catch (const CommError& error) {
          text = error.what();
        }
      },
      timeout);
  return texts;
}

}  // namespace

TEST_CASE("thread messages: every message is a plain copy, 2 to 5 ranks") {
  for (int world_size = 2; world_size <= 5; ++world_size) {
    for (const std::string& text :
         texts_of_ranks(world_size, std::chrono::seconds(60), testing::run_message_script)) {
      CHECK(text == testing::kMessagesRight);
    }
  }
}

TEST_CASE("thread messages: in every group of a mesh") {
  const auto texts = texts_of_ranks(8, std::chrono::seconds(60), [](Communicator& communicator) {
    const std::shared_ptr<Communicator> world(&communicator, [](Communicator*) {});
    const Mesh mesh(world, {.data = 2, .tensor = 2, .pipeline = 2});
    for (const MeshAxis axis : {MeshAxis::data, MeshAxis::tensor, MeshAxis::pipeline}) {
      std::string text = testing::run_message_script(mesh.along(axis));
      if (text != testing::kMessagesRight) return text;
    }
    return testing::run_message_script(communicator);
  });
  for (const std::string& text : texts) CHECK(text == testing::kMessagesRight);
}

TEST_CASE("thread messages: a send does not wait for its receiver until the room is used up") {
  const auto texts = texts_of_ranks(2, milliseconds(300), [](Communicator& communicator) -> std::string {
    if (communicator.rank() == 1) return "never receives";
    for (uint64_t i = 0; i < kMostMessages; ++i) communicator.send(at::ones({4}), 1, "x")->wait();
    communicator.send(at::ones({4}), 1, "one more")->wait();
    return "no error";
  });
  CHECK_THAT(texts[0],
             StartsWith("send of one more (message 65 from rank 0 to rank 1): rank 1 has not received "
                        "earlier messages, of which at most 64, and at most 1024 MiB, may be on the way") &&
                 Contains("within 0.3 s"));
}

TEST_CASE("thread messages: a send beyond the room goes on when its receiver comes") {
  const auto texts =
      texts_of_ranks(2, std::chrono::seconds(20), [](Communicator& communicator) -> std::string {
        const int count = 3 * static_cast<int>(kMostMessages);
        if (communicator.rank() == 1) std::this_thread::sleep_for(milliseconds(200));
        for (int i = 0; i < count; ++i) {
          at::Tensor value = at::full({4}, i);
          if (communicator.rank() == 0) communicator.send(value, 1, "x")->wait();
          if (communicator.rank() == 1) {
            communicator.receive(value.zero_(), 0, "x")->wait();
            if (value[3].item<int>() != i) return "wrong value";
          }
        }
        return "went through";
      });
  for (const std::string& text : texts) CHECK(text == "went through");
}

TEST_CASE("thread messages: a message that is not sent by the deadline is named, with what its sender does") {
  const auto texts = texts_of_ranks(2, milliseconds(300), [](Communicator& communicator) -> std::string {
    at::Tensor one = at::ones({4});
    if (communicator.rank() == 0) {
      communicator.send(one, 1, "activations of micro-batch 1")->wait();
      communicator.barrier("the end")->wait();
    }
    communicator.receive(one, 0, "activations of micro-batch 1")->wait();
    communicator.receive(one, 0, "activations of micro-batch 2")->wait();
    return "no error";
  });
  CHECK(texts[1] ==
        "receive of activations of micro-batch 2 (message 2 from rank 0 to rank 1): rank 0 did not send it "
        "within 0.3 s (the limit set by --timeout); rank 0 waits for barrier of the end");
}

TEST_CASE("thread messages: a send and a receive that differ are an error on both ranks") {
  struct Row {
    at::Tensor received;
    std::string label;
    std::string words;
  };
  const Row rows[] = {
      {at::ones({5}), "a", "rank 0 sends a (4 elements of Float), rank 1 receives a (5 elements of Float)"},
      {at::ones({4}, at::kLong), "a",
       "rank 0 sends a (4 elements of Float), rank 1 receives a (4 elements of Long)"},
      {at::ones({4}), "b", "rank 0 sends a (4 elements of Float), rank 1 receives b (4 elements of Float)"}};
  for (const Row& row : rows) {
    for (const bool sender_first : {true, false}) {
      const auto texts = texts_of_ranks(2, std::chrono::seconds(20), [&](Communicator& communicator) {
        if ((communicator.rank() == 0) != sender_first) std::this_thread::sleep_for(milliseconds(50));
        if (communicator.rank() == 0) {
          communicator.send(at::ones({4}), 1, "a")->wait();
          communicator.barrier("the end")->wait();  // the sender may be told later
        } else {
          communicator.receive(row.received, 0, row.label)->wait();
        }
        return std::string("no error");
      });
      for (const std::string& text : texts)
        CHECK(text == "ranks disagree on message 1 from rank 0 to rank 1: " + row.words);
    }
  }
}

TEST_CASE("messages: a rank cannot send to itself or to one that is not there") {
  testing::run_ranks(2, [](const std::shared_ptr<Communicator>& communicator) {
    const int rank = communicator->rank();
    const auto fails = [&](int other) -> std::string {
      try {
        (void)communicator->send(at::ones({4}), other, "x");
      } catch (const UserError& error) {
        return error.what();
      }
      return "no error";
    };
    if (fails(rank) != "send of x: rank " + std::to_string(rank) +
                           " is both sender and receiver; a message goes to another rank")
      throw std::runtime_error(fails(rank));
    if (fails(2) != "send of x: there is no rank 2 among 2") throw std::runtime_error(fails(2));
    if (fails(-1) != "send of x: there is no rank -1 among 2") throw std::runtime_error(fails(-1));
  });
}

}  // namespace zerorun
