#include <algorithm>
#include <type_traits>
#include <variant>

#include "cuda/kernel_bodies.h"
#include "cuda/kernels.h"
#include "cuda/update_body.h"

namespace zerorun::cuda {
namespace {

static_assert(kThreads % 32 == 0);  // the threads of a block form whole warps

__device__ Thread this_thread() {
  return {int64_t{blockIdx.x} * kThreads + threadIdx.x, int64_t{gridDim.x} * kThreads};
}

// Reports `seen` in `slot` with one atomic operation per warp. So a gradient full of NaN does not cause one
// atomic operation per thread on a single address. Must be called by whole warps.
__device__ void tell(uint64_t* slot, uint64_t seen) {
  constexpr unsigned kWarp = 0xffffffff;
  if (__any_sync(kWarp, seen != 0) == 0) return;
  for (int distance = 16; distance > 0; distance /= 2) {
    keep_larger(seen, __shfl_xor_sync(kWarp, seen, distance));
  }
  static_assert(sizeof(uint64_t) == sizeof(unsigned long long));
  if (threadIdx.x % 32 == 0) atomicMax(reinterpret_cast<unsigned long long*>(slot), seen);
}

template <typename Body>
__global__ void __launch_bounds__(kThreads) scale_kernel(Body body, Division division, uint64_t* slot) {
  run(body, division, this_thread());
  if (slot != nullptr) tell(slot, body.slot);
}

template <typename Body>
__global__ void __launch_bounds__(kThreads)
    update_kernel(Body body, Division division, const StepFacts* facts) {
  if (facts->apply == 0) return;
  body.factor = facts->factor;
  run(body, division, this_thread());
}

__constant__ CodeBook code_books[] = {moment_codes::make_book(true), moment_codes::make_book(false)};

// Returns the largest key of the block's threads in all of them.
__device__ uint32_t largest_of_block(uint32_t* keys, uint32_t own) {
  constexpr unsigned kWarp = 0xffffffff;
  const uint32_t of_warp = __reduce_max_sync(kWarp, own);
  __syncthreads();  // threads may still read the keys of the previous call
  if (threadIdx.x % 32 == 0) keys[threadIdx.x / 32] = of_warp;
  __syncthreads();
  return __reduce_max_sync(kWarp, keys[threadIdx.x % (kThreads / 32)]);
}

static_assert(kThreads == kCodedBlock);  // one element a thread

template <typename Body>
__global__ void __launch_bounds__(kThreads) update_codes_kernel(Body body, const StepFacts* facts) {
  // Threads read different values at a time, which constant memory serves one after another.
  __shared__ CodeBook books[2];
  __shared__ uint32_t keys[kThreads / 32];
  if (facts->apply == 0) return;
  const auto* from = reinterpret_cast<const uint32_t*>(code_books);
  for (unsigned i = threadIdx.x; i < sizeof books / sizeof *from; i += kThreads)
    reinterpret_cast<uint32_t*>(books)[i] = from[i];
  __syncthreads();
  body.factor = facts->factor;
  for (int64_t begin = int64_t{blockIdx.x} * kThreads; begin < body.numel;
       begin += int64_t{gridDim.x} * kThreads) {
    const int64_t index = begin + threadIdx.x;
    const bool is_here = index < body.numel;
    Element element{0, 0, 0, 0};
    // All scales of the block are read before any is written: largest_of_block() waits for all threads.
    if (is_here) element = body.update(index, books[0], books[1]);
    const uint32_t first = largest_of_block(keys, is_here ? magnitude_key(element.first) : 0);
    const uint32_t second =
        Body::kHasSecond ? largest_of_block(keys, is_here ? magnitude_key(element.second) : 0) : 0;
    if (is_here) body.store(index, element, first, second, books[0].limits, books[1].limits);
  }
}

template <typename Body>
__global__ void __launch_bounds__(kThreads) follow_written_kernel(Body body, Division division) {
  run(body, division, this_thread());
}

// Returns the block's sum in thread 0, and 0 in the other threads.
__device__ double sum_of_block(double* sums, double own) {
  const int thread = static_cast<int>(threadIdx.x);
  __syncthreads();  // thread 0 may still read the sums of the previous call
  sums[thread] = own;
  for (int distance = kThreads / 2; distance > 0; distance /= 2) {
    __syncthreads();
    add_upper_half(sums, thread, distance);
  }
  return thread == 0 ? sums[0] : 0;
}

template <typename T>
__global__ void __launch_bounds__(kThreads)
    add_squares_kernel(Squares<T> squares, int parts, double weight, SquaresScratch* scratch, Tally* tally) {
  __shared__ double sums[kThreads];
  __shared__ bool is_last;
  const int thread = static_cast<int>(threadIdx.x);
  uint64_t seen = 0;
  for (int part = static_cast<int>(blockIdx.x); part < parts; part += static_cast<int>(gridDim.x)) {
    const double sum = sum_of_block(sums, squares.sum(part, thread, seen));
    if (thread == 0) scratch->parts[part] = sum;
  }
  tell(&tally->sum, seen);
  // The last block to finish sees the partial sums of all blocks, and adds them.
  if (thread == 0) {
    __threadfence();
    is_last = atomicInc(&scratch->arrived, gridDim.x - 1) == gridDim.x - 1;
  }
  __syncthreads();
  if (!is_last) return;
  __threadfence();
  const double total = sum_of_block(sums, sum_of_parts(scratch->parts, parts, thread));
  if (thread == 0) tally->squares += weight * total;
}

__global__ void publish_kernel(Tally* tally, double* exchange, int rank, int ranks) {
  publish(*tally, exchange, rank, ranks);
  *tally = Tally{};
}

// One thread adds the ranks' sums in order, which is fast if they are in shared memory. All threads copy the
// first `copied` of them, either all or none.
__global__ void decide_kernel(double* exchange, int ranks, int copied, StepRule rule) {
  extern __shared__ double squares[];
  for (int rank = threadIdx.x; rank < copied; rank += blockDim.x) squares[rank] = exchange[rank];
  __syncthreads();
  if (threadIdx.x > 0) return;
  StepFacts* facts = reinterpret_cast<StepFacts*>(exchange + exchanged_numel(ranks));
  *facts = decide(copied ? squares : exchange, ranks, rule);
}

template <typename... Parameters, typename... Arguments>
cudaError_t start(cudaStream_t stream, int64_t blocks, int threads, void (*kernel)(Parameters...),
                  Arguments... arguments) {
  cudaLaunchConfig_t config{};
  config.gridDim = dim3(static_cast<unsigned>(blocks));
  config.blockDim = dim3(static_cast<unsigned>(threads));
  config.stream = stream;
  return cudaLaunchKernelEx(&config, kernel, arguments...);
}

int64_t blocks_for(int64_t threads, const Launch& launch) {
  return std::clamp<int64_t>((threads + kThreads - 1) / kThreads, 1, launch.max_blocks);
}

// Launches `kernel` in at most launch.max_blocks blocks. It has one thread per kAhead groups or one per
// single element, whichever gives more threads.
template <typename Body, typename... Parameters, typename... Arguments>
cudaError_t start_for(const Launch& launch, int64_t numel, void (*kernel)(Body, Division, Parameters...),
                      const Body& body, Arguments... arguments) {
  if (numel == 0) return cudaSuccess;
  const Division division = body.division(numel);
  const int64_t grouped = (division.groups + Body::kAhead - 1) / Body::kAhead;
  const int64_t single = numel - division.groups * Body::kWidth;
  return start(launch.stream, blocks_for(std::max(grouped, single), launch), kThreads, kernel, body, division,
               arguments...);
}

template <typename T>
struct Type {
  using type = T;
};

// Calls `call` with the Type that corresponds to `dtype`.
template <typename Call>
cudaError_t with_type(Dtype dtype, const Call& call) {
  switch (dtype) {
    case Dtype::fp32:
      return call(Type<float>{});
    case Dtype::bf16:
      return call(Type<Bf16>{});
    case Dtype::fp16:
      return call(Type<Fp16>{});
  }
  return cudaErrorInvalidValue;
}

template <template <typename, typename> typename Body>
cudaError_t scale(const Launch& launch, Target to, Source from, int64_t numel, float factor,
                  FiniteCheck check) {
  return with_type(to.dtype, [&](auto to_type) {
    return with_type(from.dtype, [&](auto from_type) {
      using To = typename decltype(to_type)::type;
      using From = typename decltype(from_type)::type;
      const Body<To, From> body{static_cast<To*>(to.values), static_cast<const From*>(from.values), factor,
                                check.number};
      return start_for(launch, numel, scale_kernel<Body<To, From>>, body, check.slot);
    });
  });
}

template <typename State, typename Rule>
cudaError_t update_by(const Launch& launch, const Rule& rule, const UpdateSpan& span,
                      const StepFacts* facts) {
  return with_type(span.gradient_dtype, [&](auto gradient_type) {
    using Body = Update<Rule, typename decltype(gradient_type)::type, State>;
    return start_for(launch, span.numel, update_kernel<Body>, Body(rule, span), facts);
  });
}

template <typename State, typename Rule>
cudaError_t update_codes_by(const Launch& launch, const Rule& rule, const UpdateSpan& span,
                            const StepFacts* facts) {
  if (span.numel == 0) return cudaSuccess;
  return with_type(span.gradient_dtype, [&](auto gradient_type) {
    using Body = CodedUpdate<Rule, typename decltype(gradient_type)::type, State>;
    return start(launch.stream, blocks_for(span.numel, launch), kThreads, update_codes_kernel<Body>,
                 Body(rule, span), facts);
  });
}

// Only rules whose moments may be codes get a kernel for them.
template <typename Rule>
cudaError_t update_codes(const Launch& launch, const Rule& rule, const UpdateSpan& span,
                         const StepFacts* facts) {
  if constexpr (std::is_same_v<Rule, AdamUpdate> || std::is_same_v<Rule, LionUpdate>) {
    return span.values_dtype == Dtype::fp32 ? update_codes_by<WideState>(launch, rule, span, facts)
                                            : update_codes_by<NarrowState>(launch, rule, span, facts);
  } else {
    return cudaErrorInvalidValue;
  }
}

}  // namespace

cudaError_t copy_scaled(const Launch& launch, Target to, Source from, int64_t numel, float factor,
                        FiniteCheck check) {
  return scale<CopyScaled>(launch, to, from, numel, factor, check);
}

cudaError_t add_scaled(const Launch& launch, Target to, Source from, int64_t numel, float factor,
                       FiniteCheck check) {
  return scale<AddScaled>(launch, to, from, numel, factor, check);
}

cudaError_t add_squares(const Launch& launch, Tally* tally, SquaresScratch* scratch, Source values,
                        int64_t numel, int64_t number, double weight) {
  if (numel == 0) return cudaSuccess;
  return with_type(values.dtype, [&](auto type) {
    using T = typename decltype(type)::type;
    const Squares<T> squares{static_cast<const T*>(values.values), numel, number,
                             reinterpret_cast<uintptr_t>(values.values) % kAccess == 0};
    const int parts = parts_of(numel);
    return start(launch.stream, std::min<int64_t>(parts, launch.max_blocks), kThreads, add_squares_kernel<T>,
                 squares, parts, weight, scratch, tally);
  });
}

// Runs as one thread, because it only writes a few numbers per rank and waits for none of them.
cudaError_t publish(cudaStream_t stream, Tally* tally, double* exchange, int rank, int ranks) {
  return start(stream, 1, 1, publish_kernel, tally, exchange, rank, ranks);
}

cudaError_t decide(cudaStream_t stream, double* exchange, int ranks, const StepRule& rule) {
  constexpr int kMostInSharedMemory = 48 * 1024 / sizeof(double);
  const int copied = ranks <= kMostInSharedMemory ? ranks : 0;
  cudaLaunchConfig_t config{};
  config.gridDim = dim3(1);
  config.blockDim = dim3(kThreads);
  config.dynamicSmemBytes = copied * sizeof(double);
  config.stream = stream;
  return cudaLaunchKernelEx(&config, decide_kernel, exchange, ranks, copied, rule);
}

cudaError_t follow_written(const Launch& launch, float* master, Source values, int64_t numel) {
  return with_type(values.dtype, [&](auto type) {
    using From = typename decltype(type)::type;
    const FollowWritten<From> body{master, static_cast<const From*>(values.values)};
    return start_for(launch, numel, follow_written_kernel<FollowWritten<From>>, body);
  });
}

cudaError_t update(const Launch& launch, const UpdateRule& rule, const UpdateSpan& span,
                   const StepFacts* facts) {
  return std::visit(
      [&](const auto& formula) {
        if (span.has_codes()) return update_codes(launch, formula, span, facts);
        return span.is_all_float32() ? update_by<WideState>(launch, formula, span, facts)
                                     : update_by<NarrowState>(launch, formula, span, facts);
      },
      rule);
}

}  // namespace zerorun::cuda
