#include "doctor/probe_measure.h"

// at::full(), at::zeros(), item()
#include <ATen/ATen.h>

#include <algorithm>
#include <chrono>
#include <string>

#include "base/error.h"

namespace zerorun::doctor {
namespace {

constexpr int kBatches = 5;
constexpr int kCallsPerBatch = 20;
constexpr int64_t kMebibyte = int64_t{1} << 20;
constexpr int64_t kCollectiveBytes = 16 * kMebibyte;
constexpr double kSecondsPerTransfer = 0.1;

double seconds_of(const auto& work) {
  const auto start = std::chrono::steady_clock::now();
  work();
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

// The shortest time of several batches: other programs on the machine can make a batch slower, never faster.
double best_seconds_per_call(const auto& call) {
  double best = 1e9;
  for (int batch = 0; batch < kBatches; ++batch) {
    best = std::min(best, seconds_of([&] {
                      for (int i = 0; i < kCallsPerBatch; ++i) call();
                    }));
  }
  return best / kCallsPerBatch;
}

// Reading a value also waits until the device has computed it.
bool all_are(const at::Tensor& values, float expected) {
  return values.min().item<float>() == expected && values.max().item<float>() == expected;
}

// Rank 0 sends `tensor` to rank 1, then rank 1 sends it back.
void ping_pong(Communicator& communicator, const at::Tensor& tensor, const std::string& label) {
  for (const int root : {0, 1}) communicator.broadcast(tensor, root, label)->wait();
}

double transfer(Communicator& communicator, const at::Tensor& tensor, int root) {
  const at::Tensor receipt = at::zeros(1);
  tensor.fill_(static_cast<float>(communicator.rank()));
  const double seconds = seconds_of([&] {
    communicator.broadcast(tensor, root, "a transfer of " + std::to_string(tensor.nbytes()) + " bytes")
        ->wait();
    communicator.broadcast(receipt, 1 - root, "its receipt")->wait();
  });
  if (!all_are(tensor, static_cast<float>(root))) throw CommError("data arrives changed");
  return seconds;
}

}  // namespace

void measure_collectives(Communicator& communicator, JobReport& report) {
  const int ranks = communicator.world_size();
  const auto mine = static_cast<float>(communicator.rank() + 1);
  const float sum = static_cast<float>(ranks) * static_cast<float>(ranks + 1) / 2;

  const at::Tensor one = communicator.allocate(1, at::kFloat);
  one.fill_(mine);
  communicator.all_reduce(one, "doctor's first")->wait();
  if (!all_are(one, sum)) {
    throw CommError("the all-reduce of 1 to " + std::to_string(ranks) + " gave " +
                    std::to_string(one.item<float>()) + " on rank " + std::to_string(communicator.rank()));
  }
  report.all_reduce_us = 1e6 * best_seconds_per_call([&] {
                           one.fill_(mine);
                           communicator.all_reduce(one, "doctor's latency")->wait();
                           one.item<float>();
                         });

  const int64_t part = kCollectiveBytes / 4 / ranks + 1;
  const at::Tensor whole = communicator.allocate(part * ranks, at::kFloat);
  const at::Tensor slice = communicator.allocate(part, at::kFloat);
  double best = 1e9;
  for (int i = 0; i < kBatches; ++i) {
    whole.fill_(mine);
    communicator.barrier("doctor's start")->wait();
    const double seconds = seconds_of([&] {
      communicator.reduce_scatter(slice, whole, "doctor's bandwidth")->wait();
      communicator.all_gather(whole, slice, "doctor's bandwidth")->wait();
      whole.slice(0, 0, 1).item<float>();
    });
    best = std::min(best, seconds);
    if (!all_are(slice, sum) || !all_are(whole, sum)) {
      throw CommError("a reduce-scatter and an all-gather gave wrong sums on rank " +
                      std::to_string(communicator.rank()));
    }
  }
  report.bus_bandwidth = 2.0 * 4.0 * static_cast<double>(part) * (ranks - 1) / best;
}

void measure_link(Communicator& communicator, Link& link) {
  const at::Tensor one = at::zeros(1);
  ping_pong(communicator, one, "a first message");
  link.latency_us =
      1e6 / 2 * best_seconds_per_call([&] { ping_pong(communicator, one, "a message of 4 bytes"); });

  // Choose a size whose transfer takes about kSecondsPerTransfer. Both ranks use the size that rank 0
  // computes.
  const double first = transfer(communicator, at::empty(kMebibyte / 4), 0);
  const at::Tensor mebibytes = at::full(1, std::clamp(kSecondsPerTransfer / first, 1.0, 64.0), at::kDouble);
  communicator.broadcast(mebibytes, 0, "the size of transfers")->wait();
  const auto numel = static_cast<int64_t>(mebibytes.item<double>()) * kMebibyte / 4;
  const at::Tensor tensor = at::empty(numel);
  double slower = 0;
  for (const int root : {0, 1}) {
    const double again = transfer(communicator, tensor, root);
    slower = std::max(slower, std::min(again, transfer(communicator, tensor, root)));
  }
  link.bandwidth = static_cast<double>(tensor.nbytes()) / slower;
}

}  // namespace zerorun::doctor
