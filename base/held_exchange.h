// What ranks and the keepers of other hosts' held memory say to each other, after a greeting
// (base/greeting.h) whose secret is the token of the attempt: requests, each with its answer. All hosts of a
// job have the byte order of x86-64 and aarch64.
#pragma once

#include <cstdint>

#include "base/greeting.h"

namespace zerorun {

inline constexpr GreetingWords kHeldWords = {"zerorun memory 1\n", "keeper", "rank"};

enum class HeldVerb : int32_t {
  read,     // of any file
  write,    // into a copy; `bytes` follow
  reserve,  // memory for so many bytes of a copy, from `offset` on, of which the answer says how many were
            // taken; 0 bytes: frees what is behind `offset`
};

struct HeldRequest {
  HeldVerb verb = HeldVerb::read;
  int32_t rank = 0;  // of the keeper's host, from 0 on; for copies of the host before it
  int32_t slot = 0;  // 0 and 1: what the rank has written itself; 2 and 3: copies
  int32_t unused = 0;
  int64_t offset = 0;
  int64_t bytes = 0;
};

/// Of a read, `bytes` of the file follow: fewer than wanted at the file's end. Negative: an error number, and
/// nothing follows.
struct HeldAnswer {
  int64_t bytes = 0;
};

/// How many slots a rank has in a keeper's memory.
inline constexpr int kOwnSlots = 2, kAllSlots = 4;

}  // namespace zerorun
