#include "engine/saving/kept_files.h"

#include <algorithm>
#include <functional>
#include <optional>

#include "engine/saving/held_places.h"

namespace zerorun {

int64_t KeptFiles::write(std::vector<checkpoint::FileToWrite>& files, const FrozenFiles& frozen,
                         checkpoint::HeldFiles& slot,
                         std::map<std::string, checkpoint::StateFileFacts>& facts) {
  std::ranges::stable_sort(files, std::ranges::greater(), &checkpoint::FileToWrite::is_frozen);
  std::optional<int64_t> begin;
  for (const checkpoint::FileToWrite& file : files) {
    const int64_t changes = frozen.changes(file.name);
    const auto there = kept_.find(file.name);
    if (there != kept_.end() && there->second.changes == changes && there->second.digest == file.digest) {
      slot.keep(file.name, there->second.place);
      facts[file.name] = there->second.facts;
      continue;
    }
    if (!begin) begin = slot.end();
    facts[file.name] = checkpoint::write_state_file(slot, kHeldFolder, file);
    if (file.is_frozen)
      kept_[file.name] = {facts[file.name], slot.places().at(file.name), file.digest, changes};
  }
  return begin.value_or(slot.end());
}

}  // namespace zerorun
