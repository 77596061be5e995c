// What ranks and the keepers of other hosts' held memory say to each other, after a greeting
// (base/greeting.h) whose secret is the token of the attempt: requests, each with its answer. All hosts of a
// job have the byte order of x86-64 and aarch64.
#pragma once

#include <cstdint>

#include "base/greeting.h"

namespace zerorun {

inline constexpr GreetingWords kHeldWords = {"zerorun memory 1\n", "keeper", "rank"};

/// A request to read.
struct HeldRequest {
  int32_t rank = 0;  // of the keeper's host, from 0 on
  int32_t slot = 0;
  int64_t offset = 0;
  int64_t bytes = 0;
};

/// `bytes` of the file follow: fewer than wanted at the file's end. Negative: an error number, and nothing
/// follows.
struct HeldAnswer {
  int64_t bytes = 0;
};

}  // namespace zerorun
