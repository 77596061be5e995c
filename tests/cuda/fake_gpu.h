// A fake of the part of the CUDA runtime that NCCL's callers use, linked in place of libcudart, for tests
// without a GPU. Any thread.
#pragma once

#include <vector>

namespace zerorun::testing {

struct FakeGpu {
  /// How often the calling thread has called cudaSetDevice().
  static int set_device_calls();
  /// Whether the calling thread may query events while another thread captures a CUDA graph.
  static bool relaxed();
  /// The number of queries that would have broken a capture by another thread.
  static int forbidden_queries();
  /// Sets whether events that are recorded from now on have passed.
  static void let_events_pass(bool pass);
};

}  // namespace zerorun::testing
