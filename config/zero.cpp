#include "config/sections.h"

namespace zerorun {

ZeroConfig read_zero(SectionReader& top) {
  ZeroConfig zero;
  std::optional<SectionReader> section = top.section("zero_optimization");
  if (!section) return zero;
  int64_t stage = zero.stage;
  section->read("stage", stage);
  if (stage == 3) {
    section->report("stage", "0, 1 or 2", "3, which only DeepSpeed offers so far",
                    "write 2 to divide the most");
  }
  zero.stage = static_cast<int>(stage);
  section->read("reduce_bucket_size", zero.reduce_bucket_size);
  section->read("allgather_bucket_size", zero.allgather_bucket_size);
  section->read("overlap_comm", zero.overlap_comm);
  return zero;
}

}  // namespace zerorun
