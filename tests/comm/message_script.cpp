#include "tests/comm/message_script.h"

#include <torch/torch.h>

#include <algorithm>
#include <cstring>
#include <random>
#include <utility>
#include <vector>

namespace zerorun::testing {
namespace {

constexpr at::ScalarType kTypes[] = {at::kFloat, at::kDouble, at::kLong,    at::kInt,
                                     at::kByte,  at::kHalf,   at::kBFloat16};

struct Received {
  std::unique_ptr<Work> work;
  at::Tensor tensor;
  at::Tensor wanted;
  std::string what;
};

class MessageScript {
 public:
  explicit MessageScript(Communicator& communicator)
      : comm_(communicator), rank_(communicator.rank()), world_(communicator.world_size()) {}

  std::string run() {
    for (const at::ScalarType dtype : kTypes) {
      for (const int64_t numel : {0, 1, 17, 1000, 5000}) ring(numel, dtype);
    }
    for (int order = 0; order < 6; ++order) all_pairs(order);
    between_collectives();
    shapes();
    volume();
    return wrong_.empty() ? kMessagesRight : wrong_;
  }

 private:
  int next() const { return (rank_ + 1) % world_; }
  int previous() const { return (rank_ + world_ - 1) % world_; }

  static at::Tensor empty(int64_t numel, at::ScalarType dtype) {
    return at::empty({numel}, at::TensorOptions().dtype(dtype));
  }

  // Every other rank posts its receive first. The sent tensor is overwritten as soon as its send is over.
  void ring(int64_t numel, at::ScalarType dtype) {
    const int64_t number = ++number_;
    at::Tensor mine = message_values(rank_, next(), number, numel, dtype);
    at::Tensor got = rank_ % 2 == 0 ? empty(numel, dtype) : comm_.allocate(numel, dtype);
    std::unique_ptr<Work> receipt;
    if (rank_ % 2 == 0) receipt = comm_.receive(got, previous(), "ring");
    comm_.send(mine, next(), "ring")->wait();
    mine.zero_();
    if (!receipt) receipt = comm_.receive(got, previous(), "ring");
    receipt->wait();
    expect("ring", got, message_values(previous(), rank_, number, numel, dtype));
  }

  // Twelve messages between any two ranks, in both directions. `order` 0: all sends first; 1: all receives
  // first; 2 to 5: each rank posts in a random order of its own. The waits come in reverse or random order.
  void all_pairs(int order) {
    constexpr int kEach = 12;
    std::vector<std::pair<int, bool>> posts;  // the other rank, and whether it is a send
    for (int other = 0; other < world_; ++other) {
      for (int i = 0; other != rank_ && i < kEach; ++i) {
        posts.emplace_back(other, true);
        posts.emplace_back(other, false);
      }
    }
    std::mt19937 random(static_cast<unsigned>(order * 100 + rank_));
    if (order >= 2) std::shuffle(posts.begin(), posts.end(), random);
    if (order < 2)
      std::ranges::stable_partition(posts, [&](const auto& post) { return post.second == (order == 0); });
    std::vector<int64_t> sent(world_, 1000 * order);
    std::vector<int64_t> received(world_, 1000 * order);
    std::vector<Received> receipts;
    std::vector<std::unique_ptr<Work>> sends;
    for (const auto& [other, is_send] : posts) {
      int64_t& number = (is_send ? sent : received)[other];
      const int64_t numel = 7 + 900 * (++number % 5);
      const std::string label = "pair " + std::to_string(number);
      if (is_send) {
        sends.push_back(comm_.send(message_values(rank_, other, number, numel, at::kFloat), other, label));
      } else {
        at::Tensor tensor = empty(numel, at::kFloat);
        receipts.push_back({comm_.receive(tensor, other, label), tensor,
                            message_values(other, rank_, number, numel, at::kFloat), label});
      }
    }
    std::ranges::reverse(receipts);
    if (order % 2 == 1) std::shuffle(receipts.begin(), receipts.end(), random);
    for (Received& one : receipts) {
      one.work->wait();
      expect(one.what, one.tensor, one.wanted);
    }
    for (const auto& send : sends) send->wait();
  }

  // A receive is posted before a collective, and its message is sent while the collective is in flight.
  void between_collectives() {
    for (int round = 0; round < 5; ++round) {
      const int64_t number = ++number_;
      at::Tensor got = empty(3000, at::kFloat);
      at::Tensor sum = at::full({500}, rank_ + 1.0F);
      auto receipt = comm_.receive(got, previous(), "between");
      auto reduction = comm_.all_reduce(sum, "between");
      auto send = comm_.send(message_values(rank_, next(), number, 3000, at::kFloat), next(), "between");
      if (round % 2 == 0) reduction->wait();
      receipt->wait();
      send->wait();
      if (round % 2 != 0) reduction->wait();
      expect("between collectives", got, message_values(previous(), rank_, number, 3000, at::kFloat));
      expect("the collective", sum, at::full({500}, world_ * (world_ + 1) / 2.0F));
    }
  }

  void shapes() {
    at::Tensor got = at::empty({5, 6});
    auto receipt = comm_.receive(got, previous(), "shape");
    comm_.send(at::full({2, 3, 5}, static_cast<float>(rank_)), next(), "shape")->wait();
    receipt->wait();
    expect("shape", got, at::full({5, 6}, static_cast<float>(previous())));
  }

  void volume() {
    comm_.volume().reset();
    at::Tensor got = at::empty({40});
    comm_.send(at::ones({40}), next(), "volume")->wait();
    comm_.receive(got, previous(), "volume")->wait();
    if (comm_.volume().elements_of_messages() != 40) note("volume");
    comm_.volume().reset();
    if (comm_.volume().elements_of_messages() != 0) note("volume after reset()");
  }

  void expect(const std::string& what, const at::Tensor& got, const at::Tensor& wanted) {
    const bool same =
        got.nbytes() == wanted.nbytes() &&
        (got.nbytes() == 0 || std::memcmp(got.const_data_ptr(), wanted.const_data_ptr(), got.nbytes()) == 0);
    if (!same) note(what + " x " + std::to_string(wanted.numel()));
  }

  void note(const std::string& what) { wrong_ += "rank " + std::to_string(rank_) + ": wrong " + what + "\n"; }

  Communicator& comm_;
  const int rank_;
  const int world_;
  int64_t number_ = 0;
  std::string wrong_;
};

}  // namespace

at::Tensor message_values(int sender, int receiver, int64_t number, int64_t numel, at::ScalarType dtype) {
  at::Tensor tensor = at::empty({numel}, at::TensorOptions().dtype(dtype));
  auto* bytes = static_cast<char*>(tensor.mutable_data_ptr());
  uint64_t word = static_cast<uint64_t>(number * 10'000 + sender * 100 + receiver + 1);
  for (size_t begin = 0; begin < tensor.nbytes(); begin += sizeof word) {
    word = word * 6364136223846793005ULL + 1442695040888963407ULL;
    std::memcpy(bytes + begin, &word, std::min(sizeof word, tensor.nbytes() - begin));
  }
  return tensor;
}

std::string run_message_script(Communicator& communicator) {
  return MessageScript(communicator).run();
}

std::string send_around(Communicator& communicator, const std::vector<int64_t>& sizes, int rounds) {
  const int rank = communicator.rank();
  const int world = communicator.world_size();
  const int next = (rank + 1) % world;
  const int previous = (rank + world - 1) % world;
  for (const int64_t size : sizes) {
    for (int round = 0; round < rounds; ++round) {
      at::Tensor mine = message_values(rank, next, round, size, at::kByte);
      at::Tensor got = at::empty({size}, at::TensorOptions().dtype(at::kByte));
      std::unique_ptr<Work> receipt;
      if (round % 2 != 0) receipt = communicator.receive(got, previous, "around");
      communicator.send(mine, next, "around")->wait();
      mine.zero_();
      if (!receipt) receipt = communicator.receive(got, previous, "around");
      receipt->wait();
      if (!at::equal(got, message_values(previous, rank, round, size, at::kByte)))
        return "wrong message of " + std::to_string(size) + " bytes";
    }
  }
  return kMessagesRight;
}

}  // namespace zerorun::testing
