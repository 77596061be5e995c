// Marks functions that the CUDA compiler compiles for host and device. Other compilers compile them for the
// host only. They are always inlined, so that kernels compiled for a specific instruction set may call them.
#pragma once

#if defined(__CUDACC__)
#define ZERORUN_HOST_DEVICE __host__ __device__ __forceinline__
#else
#define ZERORUN_HOST_DEVICE [[gnu::always_inline]] inline
#endif
