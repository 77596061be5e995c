#include "config/sections.h"

namespace zerorun {

void read_precision(SectionReader& top) {
  for (const std::string_view name : {"fp16", "bf16"}) {
    std::optional<SectionReader> section = top.section(name);
    bool enabled = false;
    if (section) section->read("enabled", enabled);
  }
}

}  // namespace zerorun
