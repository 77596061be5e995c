// The kernels of a CUDA device as functions on memory; device/device.h defines what they compute. For
// cuda_device.cpp and tests; thread-safe. They run on the given stream, whose device must be the calling
// thread's current one. No LibTorch.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>

#include "base/dtype.h"
#include "device/step_facts.h"
#include "device/update_kernels.h"
#include "device/update_rules.h"

namespace zerorun::cuda {

struct SquaresScratch;  // kernel_bodies.h

/// A kernel's stream and its maximum number of blocks, which does not change the results.
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

/// Where a kernel reports a finite_check ([Note: finite checks]); slot null: nowhere.
struct FiniteCheck {
  uint64_t* slot = nullptr;
  int64_t number = 1;
};

// Pointers are to device memory, aligned to their element type; fastest if aligned to 16 bytes.

cudaError_t copy_scaled(const Launch& launch, Target to, Source from, int64_t numel, float factor,
                        FiniteCheck check);
cudaError_t add_scaled(const Launch& launch, Target to, Source from, int64_t numel, float factor,
                       FiniteCheck check);
/// `scratch`: zeros before its first call; calls with the same scratch must not overlap.
cudaError_t add_squares(const Launch& launch, Tally* tally, SquaresScratch* scratch, Source values,
                        int64_t numel, int64_t number);
cudaError_t publish(cudaStream_t stream, Tally* tally, double* exchange, int rank, int ranks);
/// Reads exchange[0, ranks), writes the facts after the exchanged elements.
cudaError_t decide(cudaStream_t stream, double* exchange, int ranks, const StepRule& rule);
cudaError_t follow_written(const Launch& launch, float* master, Source values, int64_t numel);

/// `span` and `facts` point to device memory.
template <typename Rule>
cudaError_t update(const Launch& launch, const Rule& rule, const UpdateSpan& span, const StepFacts* facts);

}  // namespace zerorun::cuda
