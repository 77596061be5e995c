// What CUDA compiles for both sides, and other compilers for theirs alone. Always inlined, so that kernels
// compiled for an instruction set of their own may call it.
#pragma once

#if defined(__CUDACC__)
#define ZERORUN_HOST_DEVICE __host__ __device__ __forceinline__
#else
#define ZERORUN_HOST_DEVICE [[gnu::always_inline]] inline
#endif
