// Checks of the collectives of a communicator on GPUs, beside the same sums on the CPU. They return kRight,
// or what is wrong.
#pragma once

#include <torch/torch.h>

#include <chrono>
#include <memory>
#include <string>
#include <vector>

#include "comm/communicator.h"

namespace zerorun::testing {

inline constexpr std::chrono::milliseconds kAmple = std::chrono::seconds(120);

/// The text that a rank's body returns if all of its checks have passed.
inline constexpr char kRight[] = "right";

// Returns the values of one rank. They are small integers, whose sums are exact in every dtype and any order.
inline at::Tensor values_of(int rank, int64_t seed, int64_t numel, at::ScalarType dtype) {
  const at::Tensor index = at::arange(numel, at::kLong);
  return ((index * 7 + rank * 13 + seed * 5).remainder(23) - 11).to(dtype);
}

inline at::Tensor on_gpu(Communicator& comm, const at::Tensor& values) {
  return values.to(comm.device().location());
}

inline std::string expect(const std::string& what, const at::Tensor& got, const at::Tensor& wanted) {
  const at::Tensor found = got.cpu();
  if (found.scalar_type() == wanted.scalar_type() && found.equal(wanted)) return "";
  return "wrong " + what + " of " + c10::toString(wanted.scalar_type()) + " x " +
         std::to_string(wanted.numel()) + "\n";
}

inline at::Tensor sum_of_ranks(int ranks, int64_t seed, int64_t numel, at::ScalarType dtype) {
  at::Tensor total = values_of(0, seed, numel, at::kDouble);
  for (int rank = 1; rank < ranks; ++rank) total += values_of(rank, seed, numel, at::kDouble);
  return total.to(dtype);
}

inline at::Tensor gathered(int ranks, int64_t seed, int64_t slice, at::ScalarType dtype) {
  std::vector<at::Tensor> parts;
  for (int rank = 0; rank < ranks; ++rank) parts.push_back(values_of(rank, seed, slice, dtype));
  return at::cat(parts);
}

inline std::string check_reduce_scatter(Communicator& comm, int64_t seed, int64_t slice,
                                        at::ScalarType dtype) {
  const int ranks = comm.world_size();
  const at::Tensor wanted =
      sum_of_ranks(ranks, seed, slice * ranks, dtype).narrow(0, comm.rank() * slice, slice).clone();
  const at::Tensor values = values_of(comm.rank(), seed, slice * ranks, dtype);
  const at::Tensor input = comm.allocate(slice * ranks, dtype);
  input.copy_(values);
  const at::Tensor output = comm.allocate(slice, dtype);
  comm.reduce_scatter(output, input, "test")->wait();
  std::string wrong =
      expect("reduce_scatter", output, wanted) + expect("reduce_scatter's input", input, values);
  const at::Tensor own = input.narrow(0, comm.rank() * slice, slice);
  comm.reduce_scatter(own, input, "test")->wait();
  wrong += expect("reduce_scatter in place", own, wanted);
  const at::Tensor other = on_gpu(comm, values);  // memory of LibTorch, not of the communicator
  comm.reduce_scatter(output, other, "test")->wait();
  return wrong + expect("reduce_scatter of other memory", output, wanted);
}

inline std::string check_all_gather(Communicator& comm, int64_t seed, int64_t slice, at::ScalarType dtype) {
  const int ranks = comm.world_size();
  const at::Tensor wanted = gathered(ranks, seed, slice, dtype);
  const at::Tensor values = values_of(comm.rank(), seed, slice, dtype);
  const at::Tensor output = comm.allocate(slice * ranks, dtype);
  comm.all_gather(output, on_gpu(comm, values), "test")->wait();
  std::string wrong = expect("all_gather", output, wanted);
  output.zero_();
  const at::Tensor own = output.narrow(0, comm.rank() * slice, slice);
  own.copy_(values);
  comm.all_gather(output, own, "test")->wait();
  return wrong + expect("all_gather in place", output, wanted);
}

inline std::string check_the_others(Communicator& comm, int64_t seed, int64_t numel, at::ScalarType dtype) {
  at::Tensor tensor = on_gpu(comm, values_of(comm.rank(), seed, numel, dtype));
  comm.all_reduce(tensor, "test")->wait();
  std::string wrong = expect("all_reduce", tensor, sum_of_ranks(comm.world_size(), seed, numel, dtype));
  for (int root = 0; root < comm.world_size(); ++root) {
    tensor = on_gpu(comm, values_of(comm.rank(), seed + root, numel, dtype));
    comm.broadcast(tensor, root, "test")->wait();
    wrong += expect("broadcast", tensor, values_of(root, seed + root, numel, dtype));
  }
  return wrong;
}

inline std::string check_all(Communicator& comm) {
  std::string wrong;
  int64_t seed = 0;
  for (at::ScalarType dtype : {at::kFloat, at::kDouble, at::kLong, at::kBFloat16, at::kHalf}) {
    for (int64_t slice : {0, 1, 1000, 600'000}) {  // NCCL registers the memory of the largest only
      wrong += check_reduce_scatter(comm, ++seed, slice, dtype);
      wrong += check_all_gather(comm, ++seed, slice, dtype);
      wrong += check_the_others(comm, ++seed, slice, dtype);
    }
  }
  comm.barrier("the end")->wait();
  return wrong.empty() ? kRight : wrong;
}

// Runs gathers and reductions of several sizes at the same time, on two lanes (device/streams.h). Only events
// order the lanes.
inline std::string check_lanes(Communicator& comm) {
  constexpr int kRounds = 50;
  Streams& streams = comm.device().streams();
  const int ranks = comm.world_size();
  const auto device = comm.device().location();
  std::vector<at::Tensor> sums;
  std::vector<at::Tensor> wholes;
  std::vector<at::Tensor> inputs;  // kept until the lanes have read them
  for (int round = 0; round < kRounds; ++round) {
    const int64_t slice = 1000 + 40'000 * (round % 7);
    const at::Tensor input = on_gpu(comm, values_of(comm.rank(), round, slice * ranks, at::kFloat));
    const at::Tensor part = on_gpu(comm, values_of(comm.rank(), round + 1, slice, at::kFloat));
    sums.push_back(at::empty({slice}, at::TensorOptions().device(device)));
    wholes.push_back(at::empty({slice * ranks}, at::TensorOptions().device(device)));
    inputs.insert(inputs.end(), {input, part});
    Event ready;
    streams.record(ready, streams.current());
    for (Lane lane : {Lane::reduce, Lane::gather}) {
      streams.wait(ready, streams.of(lane), Handover::written);
      const StreamScope scope(streams, lane);
      auto work = lane == Lane::reduce ? comm.reduce_scatter(sums.back(), input, "bucket")
                                       : comm.all_gather(wholes.back(), part, "bucket");
      work->wait();
    }
  }
  for (Lane lane : {Lane::reduce, Lane::gather}) {
    Event done;
    streams.record(done, streams.of(lane));
    streams.await(done, kAmple, "the lane");
  }
  std::string wrong;
  for (int round = 0; round < kRounds; ++round) {
    const int64_t slice = sums[round].numel();
    wrong +=
        expect("sum on a lane", sums[round],
               sum_of_ranks(ranks, round, slice * ranks, at::kFloat).narrow(0, comm.rank() * slice, slice));
    wrong += expect("gather on a lane", wholes[round], gathered(ranks, round + 1, slice, at::kFloat));
  }
  return wrong.empty() ? kRight : wrong;
}

inline std::string check_together(Communicator& comm) {
  std::vector<at::Tensor> outputs;
  std::vector<std::unique_ptr<Work>> works;
  comm.as_one([&] {
    for (int i = 0; i < 5; ++i) {
      const int64_t slice = 100 + 1000 * i;
      outputs.push_back(comm.device().allocate(slice * comm.world_size(), at::kFloat));
      const at::Tensor own = outputs.back().narrow(0, comm.rank() * slice, slice);
      own.copy_(values_of(comm.rank(), i, slice, at::kFloat));
      works.push_back(comm.all_gather(outputs.back(), own, "bucket " + std::to_string(i)));
    }
  });
  std::string wrong;
  for (int i = 0; i < 5; ++i) {
    works[i]->wait();
    wrong +=
        expect("gather of a group", outputs[i], gathered(comm.world_size(), i, 100 + 1000 * i, at::kFloat));
  }
  return wrong.empty() ? kRight : wrong;
}

}  // namespace zerorun::testing
