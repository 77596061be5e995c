// Marks functions that CUDA compiles for host and device, and other compilers for the host. They are always
// inlined, so that kernels compiled for a specific instruction set may call them.
#pragma once

#if defined(__CUDACC__)
#define ZERORUN_HOST_DEVICE __host__ __device__ __forceinline__
#else
#define ZERORUN_HOST_DEVICE [[gnu::always_inline]] inline
#endif
