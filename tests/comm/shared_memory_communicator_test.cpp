// Tests ranks that are processes and use shared memory: all collectives, shared tensors, and that nothing
// stays open or mapped.
#include "comm/shared_memory/shared_memory_communicator.h"

#include <torch/torch.h>
#include <unistd.h>

#include <algorithm>
#include <catch2/catch.hpp>
#include <filesystem>
#include <fstream>
#include <thread>

#include "tests/comm/collective_script.h"
#include "tests/comm/transport_ranks.h"

namespace zerorun {
namespace {

using testing::check_texts;
using testing::Ending;
using testing::open_memory_files;
using testing::run_connected;
using testing::run_processes;
using testing::ScriptMemory;
using testing::sleep_ms;

// Counts the open memfds, open pidfds and memfd mappings of this process.
int traces() {
  int found = 0;
  for (const auto& entry : std::filesystem::directory_iterator("/proc/self/fd")) {
    std::error_code gone;
    const std::string target = std::filesystem::read_symlink(entry.path(), gone).string();
    found += target.find("memfd:") != std::string::npos || target.find("pidfd") != std::string::npos;
  }
  std::ifstream maps("/proc/self/maps");
  for (std::string line; std::getline(maps, line);) found += line.find("memfd:") != std::string::npos;
  return found;
}

size_t files_in_dev_shm() {
  const std::filesystem::directory_iterator files("/dev/shm");
  return static_cast<size_t>(std::distance(begin(files), end(files)));
}

// Returns the resident shared memory of this process in bytes.
int64_t shared_bytes() {
  std::ifstream file("/proc/self/status");
  for (std::string word; file >> word;) {
    if (word == "RssShmem:" && file >> word) return std::stoll(word) * 1024;
  }
  return -1;
}

}  // namespace

TEST_CASE("shared memory: ranks may lend tensors from different places") {
  const auto endings = run_connected({"shm", 3}, [&](auto& communicator, int rank) {
    const at::Tensor first = communicator->allocate(10'000 * (rank + 1), at::kFloat);  // so offsets differ
    return testing::run_collective_script(*communicator, rank == 0   ? ScriptMemory::own
                                                         : rank == 1 ? ScriptMemory::communicators
                                                                     : ScriptMemory::both);
  });
  check_texts(endings, testing::script_success(3));
}

TEST_CASE("shared memory: views in the arena are lent without a copy") {
  const auto endings = run_connected({"shm", 2}, [&](auto& communicator, int rank) -> std::string {
    at::Tensor memory = communicator->allocate(100'000, at::kFloat);
    at::Tensor input = memory.narrow(0, 12'345 + rank * 7, 30'000);
    input.copy_(at::arange(30'000, at::kFloat) * (rank + 1));
    at::Tensor output = memory.narrow(0, 60'000, 15'000);
    communicator->reduce_scatter(output, input, "views")->wait();
    const at::Tensor wanted = at::arange(30'000, at::kFloat).narrow(0, rank * 15'000, 15'000) * 3;
    if (!at::equal(output, wanted)) return "a wrong sum";
    return std::to_string(communicator->scratch_bytes());
  });
  for (const Ending& ending : endings) CHECK(ending.text == "0");  // no copy was made
}

TEST_CASE("shared memory: more collectives in flight than there are slots, waited for in reverse order") {
  constexpr int kCount = 300;
  const auto endings = run_connected({"shm", 3}, [&](auto& communicator, int rank) -> std::string {
    std::vector<at::Tensor> tensors;
    std::vector<std::unique_ptr<Work>> works;
    for (int i = 0; i < kCount; ++i) {
      if (i % 100 == rank * 30) sleep_ms(20);
      tensors.push_back(at::full({3}, i * (rank + 1.0F)));
      works.push_back(communicator->all_reduce(tensors.back(), "number " + std::to_string(i)));
    }
    for (int i = kCount - 1; i >= 0; --i) works[i]->wait();
    for (int i = 0; i < kCount; ++i) {
      if (tensors[i][0].item<float>() != 6.0F * static_cast<float>(i)) return "a wrong sum";
    }
    return "went through";
  });
  check_texts(endings);
}

TEST_CASE("shared memory: several threads of a rank wait") {
  constexpr int kThreads = 4;
  const auto endings = run_connected({"shm", 2}, [&](auto& communicator, int rank) -> std::string {
    std::vector<at::Tensor> outputs;
    std::vector<std::unique_ptr<Work>> works;
    for (int i = 0; i < 25 * kThreads; ++i) {
      at::Tensor input = communicator->allocate(4000, at::kFloat).fill_(i + rank);
      outputs.push_back(at::empty({2000}));
      works.push_back(communicator->reduce_scatter(outputs.back(), input, "bucket"));
    }
    std::vector<std::thread> threads;
    for (int thread = 0; thread < kThreads; ++thread) {
      threads.emplace_back([&, thread] {
        for (int i = 0; i < 25; ++i) works[(rank == 0 ? i : 24 - i) * kThreads + thread]->wait();
      });
    }
    for (std::thread& thread : threads) thread.join();
    for (size_t i = 0; i < outputs.size(); ++i) {
      if (!at::equal(outputs[i], at::full({2000}, 2.0F * static_cast<float>(i) + 1))) return "a wrong sum";
    }
    return "went through";
  });
  check_texts(endings);
}

TEST_CASE("shared memory: wait() returns when the others have read the input, not before") {
  const auto endings = run_connected({"shm", 2}, [&](auto& communicator, int rank) -> std::string {
    at::Tensor input = communicator->allocate(50'000, at::kFloat).fill_(rank + 1);
    at::Tensor output = at::empty({100'000});
    auto work = communicator->all_gather(output, input, "parameters");
    if (rank == 1) sleep_ms(600);  // rank 1 may read rank 0's input as late as in its own wait()
    work->wait();
    input.fill_(-1);
    communicator->barrier("the end")->wait();
    const bool right = (output.narrow(0, 0, 50'000) == 1).all().item<bool>() &&
                       (output.narrow(0, 50'000, 50'000) == 2).all().item<bool>();
    return right ? "right" : "overwritten while it was read";
  });
  check_texts(endings, "right");
}

TEST_CASE("shared memory: nothing stays open, mapped or in /dev/shm") {
  const size_t files = files_in_dev_shm();
  const int port = testing::free_port();
  const auto endings = run_processes(3, [&](int rank) -> std::string {
    const int before = traces();
    auto communicator = testing::join({"shm", 3}, rank, port);
    at::Tensor tensor = communicator->allocate(100'000, at::kFloat);
    communicator->all_gather(at::empty({300'000}), tensor, "parameters")->wait();
    const int open = open_memory_files();
    if (files_in_dev_shm() != files) return "a file in /dev/shm";
    communicator->barrier("the end")->wait();
    communicator.reset();
    tensor.fill_(1);  // the tensor outlives the communicator
    tensor.reset();
    return std::to_string(before) + " " + std::to_string(open) + " " + std::to_string(traces());
  });
  for (const Ending& ending : endings)
    CHECK(ending.text == "0 1 0");  // while connected, one memfd is open: the segment of shared blocks
  CHECK(files_in_dev_shm() == files);
}

TEST_CASE("shared memory: a shared tensor exists once, and no collective copies it") {
  constexpr int64_t kSlice = 100'000;
  const auto endings = run_connected({"shm", 3}, [&](auto& communicator, int rank) -> std::string {
    at::Tensor shared = communicator->allocate_shared(3 * kSlice, at::kFloat);
    at::Tensor own = shared.narrow(0, rank * kSlice, kSlice);
    const int64_t scratch = communicator->scratch_bytes();
    for (int round = 1; round <= 20; ++round) {
      if (round % 3 == rank) sleep_ms(5);
      own.fill_(10 * round + rank);
      communicator->all_gather(shared, own, "parameters")->wait();
      for (int other = 0; other < 3; ++other) {
        const at::Tensor slice = shared.narrow(0, other * kSlice, kSlice);
        if (!(slice == 10 * round + other).all().item<bool>()) return "a slice that is not there";
      }
      communicator->barrier("all have looked")->wait();
    }
    if (rank == 1) shared.fill_(7);
    communicator->broadcast(shared, 1, "parameters")->wait();
    if (!(shared == 7).all().item<bool>()) return "a broadcast that is not there";
    return communicator->scratch_bytes() == scratch ? "in place" : "copied";
  });
  check_texts(endings, "in place");
}

TEST_CASE("shared memory: after make_own() no rank sees another rank's writes") {
  const auto endings = run_connected({"shm", 3}, [&](auto& communicator, int rank) -> std::string {
    at::Tensor shared = communicator->allocate_shared(10'000, at::kFloat);
    if (rank == 0) shared.fill_(5);
    communicator->broadcast(shared, 0, "values")->wait();
    if (rank == 2) shared.reset();  // rank 2 no longer needs the tensor
    at::Tensor own = rank == 2 ? at::Tensor() : communicator->make_own(shared);
    shared.reset();
    communicator->barrier("all have their own")->wait();
    if (rank == 0) own.narrow(0, 0, 5000).fill_(6);
    communicator->barrier("rank 0 has written")->wait();
    const auto sum = rank == 2 ? 0 : static_cast<int64_t>(own.sum().item<double>());
    if (rank == 2) own = at::zeros({10'000});
    communicator->broadcast(own, 0, "what is each rank's own now moves again")->wait();
    if (static_cast<int64_t>(own.sum().item<double>()) != 55'000) return "a broadcast that is not there";
    own.reset();
    communicator->barrier("all have let go")->wait();
    at::Tensor next = communicator->allocate_shared(10'000, at::kFloat);  // reuses the place of `shared`
    if ((next != 0).any().item<bool>()) return "memory that is not zero";
    communicator->barrier("all have looked")->wait();
    if (rank == 1) next.fill_(3);
    communicator->broadcast(next, 1, "values")->wait();
    return std::to_string(sum) + " " + std::to_string(static_cast<int64_t>(next.sum().item<double>()));
  });
  CHECK(endings[0].text == "55000 30000");
  CHECK(endings[1].text == "50000 30000");
  CHECK(endings[2].text == "0 30000");
}

TEST_CASE("shared memory: the memory of a tensor is freed with it, and is zero when it is allocated again") {
  constexpr int64_t kNumel = 16 << 20;  // 64 MiB
  const auto endings = run_connected({"shm", 2}, [&](auto& communicator, int) -> std::string {
    const int64_t before = shared_bytes();
    at::Tensor output = communicator->allocate(2 * kNumel, at::kFloat);
    at::Tensor input = communicator->allocate(kNumel, at::kFloat).fill_(1);
    communicator->all_gather(output, input, "parameters")->wait();
    communicator->barrier("all is there")->wait();
    const int64_t taken = shared_bytes() - before;
    communicator->barrier("all have looked")->wait();
    input.reset();
    output.reset();
    communicator->barrier("all is gone")->wait();
    const int64_t left = shared_bytes() - before;
    const at::Tensor again = communicator->allocate(kNumel, at::kFloat);
    if (again.any().item<bool>()) return "not zero";
    communicator->barrier("the end")->wait();
    // Each rank should have mapped its own 192 MiB, and 64 MiB of the other rank's input.
    if (taken < int64_t{250} << 20) return "too little was taken: " + std::to_string(taken);
    if (left > int64_t{8} << 20) return "too much is left: " + std::to_string(left);
    return "right";
  });
  check_texts(endings, "right");
}

TEST_CASE("shared memory: a rank that ends without wait() lets the others read its input first") {
  const auto endings = run_connected({"shm", 2}, [&](auto& communicator, int rank) -> std::string {
    at::Tensor output = at::empty({200'000});
    {
      at::Tensor input = communicator->allocate(100'000, at::kFloat).fill_(rank + 1);
      if (rank == 1) sleep_ms(500);
      auto work = communicator->all_gather(output, input, "parameters");
      if (rank == 1) work->wait();
    }
    communicator.reset();
    if (rank == 1 && (output != 1).sum().item<int64_t>() != 100'000) return "a wrong slice";
    return "went through";
  });
  check_texts(endings);
}

}  // namespace zerorun
