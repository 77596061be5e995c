#include "zero/layout.h"

#include <algorithm>
#include <map>
#include <string>
#include <tuple>

#include "base/error.h"

namespace zerorun {
namespace {

int64_t round_up(int64_t value, int64_t multiple) {
  return (value + multiple - 1) / multiple * multiple;
}

}  // namespace

int64_t choose_bucket_numel(int64_t total_numel, int64_t element_size, const BucketSizeLimits& limits) {
  const int64_t prefetched = std::max(limits.prefetch, kUsefulBucketBytes / element_size);
  const int64_t wanted = std::min({limits.reduce_bucket_size, limits.allgather_bucket_size, total_numel / 16,
                                   limits.max_bytes / element_size, prefetched});
  return std::max<int64_t>(wanted, 1);
}

Layout make_layout(std::span<const LayoutParameter> parameters, int world_size, int64_t alignment,
                   int64_t bucket_numel) {
  ZR_CHECK(world_size >= 1 && alignment >= 1,
           "world size " + std::to_string(world_size) + ", alignment " + std::to_string(alignment));
  Layout layout;
  layout.locations.resize(parameters.size());
  std::map<std::tuple<int, bool, bool, Share, int>, int>
      open;  // the bucket being filled, by what its parameters share

  auto place = [&](int index) {
    const LayoutParameter& parameter = parameters[index];
    const int64_t numel = round_up(parameter.numel, alignment);
    const int lone = parameter.alone ? index : -1;
    auto [entry, first] = open.try_emplace(
        {parameter.group, parameter.partitioned, parameter.counted, parameter.share, lone}, 0);
    if (first || layout.buckets[entry->second].numel + numel > bucket_numel) {
      entry->second = static_cast<int>(layout.buckets.size());
      layout.buckets.push_back({.group = parameter.group,
                                .partitioned = parameter.partitioned,
                                .counted = parameter.counted,
                                .share = parameter.share,
                                .numel = 0,
                                .slice_numel = 0,
                                .parameters = {}});
    }
    BucketLayout& bucket = layout.buckets[entry->second];
    layout.locations[index] = {.bucket = entry->second, .offset = bucket.numel};
    bucket.parameters.push_back(index);
    bucket.numel += numel;
  };
  for (const bool frozen : {false, true}) {
    for (int index = static_cast<int>(parameters.size()) - 1; index >= 0; --index) {
      if ((parameters[index].group == kFrozen) == frozen) place(index);
    }
  }

  for (BucketLayout& bucket : layout.buckets) {
    bucket.slice_numel = round_up((bucket.numel + world_size - 1) / world_size, alignment);
    bucket.numel = bucket.slice_numel * world_size;
  }
  return layout;
}

}  // namespace zerorun
