#include "config/sections.h"

namespace zerorun {
namespace {

void read_stage3_sizes(SectionReader& section, ZeroConfig& zero) {
  const auto read_size = [&](std::string_view name, int64_t& size) {
    std::optional<int64_t> value;
    section.read(name, value);
    if (!value) return;
    size = *value;
    if (zero.stage < 3) section.note_unchanging(name);
  };
  read_size("stage3_max_live_parameters", zero.max_live_parameters);
  read_size("stage3_max_reuse_distance", zero.max_reuse_distance);
  read_size("stage3_prefetch_bucket_size", zero.prefetch_bucket_size);
  read_size("stage3_param_persistence_threshold", zero.param_persistence_threshold);
  read_size("stage3_model_persistence_threshold", zero.model_persistence_threshold);
}

}  // namespace

ZeroConfig read_zero(SectionReader& top) {
  ZeroConfig zero;
  std::optional<SectionReader> section = top.section("zero_optimization");
  if (!section) return zero;
  int64_t stage = zero.stage;
  section->read("stage", stage);
  zero.stage = static_cast<int>(stage);
  section->read("reduce_bucket_size", zero.reduce_bucket_size);
  section->read("allgather_bucket_size", zero.allgather_bucket_size);
  zero.overlap_comm = zero.stage == 3;
  section->read("overlap_comm", zero.overlap_comm);
  read_stage3_sizes(*section, zero);
  std::optional<int64_t> sub_group_size;
  section->read("sub_group_size", sub_group_size);
  if (sub_group_size) section->note_unchanging("sub_group_size");
  return zero;
}

}  // namespace zerorun
