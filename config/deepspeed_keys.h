// The keys that DeepSpeed has and ZeroRun does not offer, by section: names only. Constant data; any thread.
// Read through key_table.h.
#pragma once

#include <span>
#include <string_view>

namespace zerorun {

struct KnownSection {
  std::string_view path;  // "" is the top level
  std::string_view keys;  // space-separated
};

std::span<const KnownSection> deepspeed_only_keys();

}  // namespace zerorun
