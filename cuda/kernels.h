// The kernels of a CUDA device as functions on raw memory; device/device.h defines their results. For
// cuda_device.cpp and tests. The kernels run on the given stream, whose GPU must be the calling thread's
// current GPU. Thread-safe. No LibTorch.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>

#include "base/dtype.h"
#include "device/step_facts.h"
#include "device/update_kernels.h"
#include "device/update_rules.h"

namespace zerorun::cuda {

struct SquaresScratch;  // kernel_bodies.h

/// The stream of a kernel and its maximum number of blocks. The number of blocks does not change results.
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

/// Where a kernel reports values that are not finite ([Note: finite checks]); a null `slot` disables the
/// check.
struct FiniteCheck {
  uint64_t* slot = nullptr;
  int64_t number = 1;
};

// Pointers point to device memory and are aligned to their element type. Access is fastest if they are
// aligned to 16 bytes.

cudaError_t copy_scaled(const Launch& launch, Target to, Source from, int64_t numel, float factor,
                        FiniteCheck check);
cudaError_t add_scaled(const Launch& launch, Target to, Source from, int64_t numel, float factor,
                       FiniteCheck check);
/// `scratch` must be zero before its first use. Calls with the same scratch must not overlap.
cudaError_t add_squares(const Launch& launch, Tally* tally, SquaresScratch* scratch, Source values,
                        int64_t numel, int64_t number, double weight);
cudaError_t publish(cudaStream_t stream, Tally* tally, double* exchange, int rank, int ranks);
/// Reads the exchanged elements of all ranks and writes the StepFacts after them.
cudaError_t decide(cudaStream_t stream, double* exchange, int ranks, const StepRule& rule);
cudaError_t follow_written(const Launch& launch, float* master, Source values, int64_t numel);

/// `facts` and the pointers in `span` point to device memory.
cudaError_t update(const Launch& launch, const UpdateRule& rule, const UpdateSpan& span,
                   const StepFacts* facts);

}  // namespace zerorun::cuda
