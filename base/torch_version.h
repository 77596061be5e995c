#pragma once

// Which versions of LibTorch ZeroRun supports, and what differs between them. This is the only place that
// says so: CMake (cmake/LibTorch.cmake, doctor/CMakeLists.txt) and scripts/setup read the numbers from here.
//
// docs/versions.md says which tests have passed with which version. One later than the newest builds with a
// warning of CMake, and what ZeroRun relies on beyond LibTorch's interface is checked when the program
// starts. A patch release counts as its minor version.

#include <torch/version.h>

#define ZERORUN_TORCH_OLDEST_MINOR 11
#define ZERORUN_TORCH_NEWEST_MINOR 15

// Pointers to nodes of autograd's graph are of another kind from 2.13 on: zero/node_pointer.h.

// The NCCL that torch's wheels bring, from the oldest version on, as NCCL encodes it.
#define ZERORUN_TORCH_NCCL "22809 22907 22907 23007 23007"

// From 2.15 on, Tensor::index_put_() with a value of no dimensions looks whether the value and the tensor
// share memory, without an operator: for a parameter that is not gathered this is an access to memory that is
// not there.
#define ZERORUN_TORCH_LOOKS_AT_MEMORY_OF_ELEMENTS (TORCH_VERSION_MINOR >= 15)

static_assert(TORCH_VERSION_MAJOR == 2 && TORCH_VERSION_MINOR >= ZERORUN_TORCH_OLDEST_MINOR,
              "this LibTorch is not supported: ZeroRun needs LibTorch 2, and at least the minor version "
              "ZERORUN_TORCH_OLDEST_MINOR of base/torch_version.h");
