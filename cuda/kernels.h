// The kernels of a CUDA device as functions on memory; what they compute is device/device.h's. For
// cuda_device.cpp and tests, any thread. They run on the stream given and need its device to be the thread's
// current one. No LibTorch.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>

#include "base/dtype.h"
#include "device/step_facts.h"
#include "device/update_kernels.h"
#include "device/update_rules.h"

namespace zerorun::cuda {

struct SquaresScratch;  // kernel_bodies.h

/// Where a kernel runs, and in at most how many blocks. Results do not depend on their number.
struct Launch {
  cudaStream_t stream;
  int64_t max_blocks;
};

struct Target {
  void* values;
  Dtype dtype;
};

struct Source {
  const void* values;
  Dtype dtype;
};

/// Where a finding is told ([Note: findings]); slot null: nobody asks.
struct Told {
  uint64_t* slot = nullptr;
  int64_t number = 1;
};

// Memory is the device's, aligned to its values, fastest where that is to 16 bytes.

cudaError_t copy_scaled(const Launch& launch, Target to, Source from, int64_t numel, float factor, Told told);
cudaError_t add_scaled(const Launch& launch, Target to, Source from, int64_t numel, float factor, Told told);
/// `scratch`: zeros before its first call; calls with the same follow each other.
cudaError_t add_squares(const Launch& launch, Tally* tally, SquaresScratch* scratch, Source values,
                        int64_t numel, int64_t number);
cudaError_t publish(cudaStream_t stream, Tally* tally, double* exchange, int rank, int ranks);
/// Reads exchange[0, ranks), writes the facts behind what is exchanged.
cudaError_t decide(cudaStream_t stream, double* exchange, int ranks, const StepRule& rule);
cudaError_t follow_written(const Launch& launch, float* master, Source values, int64_t numel);

/// `span` and `facts` are the device's memory.
template <typename Rule>
cudaError_t update(const Launch& launch, const Rule& rule, const UpdateSpan& span, const StepFacts* facts);

}  // namespace zerorun::cuda
