#include "cuda/issue_history.h"

#include <sstream>

#include "base/fnv1a.h"

namespace zerorun {
namespace {

// kEvery: number of collectives from one checkpoint to the next. kKept: number of checkpoints kept per kind.
constexpr int64_t kEvery = 16;
constexpr int64_t kKept = 256;

}  // namespace

IssueHistory::IssueHistory() {
  for (OfKind& kind : kinds_) kind.kept.resize(kKept);
}

void IssueHistory::add(const CollectiveCall& call) {
  OfKind& kind = kinds_[static_cast<size_t>(call.kind)];
  kind.hash = fnv1a(fnv1a(kind.hash, static_cast<uint64_t>(call.input.numel())), call.label);
  if (++kind.count % kEvery != 0) return;
  Checkpoint& checkpoint = kind.kept[kind.count / kEvery % kKept];
  checkpoint.count = kind.count;
  checkpoint.hash = kind.hash;
  checkpoint.words = describe(call);
}

// The text has two lines per checkpoint.
std::string IssueHistory::summary() const {
  std::ostringstream text;
  for (size_t which = 0; which < kinds_.size(); ++which) {
    const OfKind& kind = kinds_[which];
    if (kind.count < kEvery) continue;
    const Checkpoint& last = kind.kept[kind.count / kEvery % kKept];
    text << which << ' ' << last.count << ' ' << last.hash << '\n' << last.words << '\n';
  }
  return text.str();
}

std::optional<std::string> IssueHistory::difference(const std::string& summary, int rank, int other) {
  std::istringstream text(summary);
  size_t which = 0;
  Checkpoint theirs;
  while (text >> which >> theirs.count >> theirs.hash && text.ignore() && std::getline(text, theirs.words)) {
    if (which >= kinds_.size()) continue;
    OfKind& kind = kinds_[which];
    const Checkpoint& mine = kind.kept[theirs.count / kEvery % kKept];
    if (mine.count != theirs.count) continue;
    if (mine.hash == theirs.hash) {
      kind.agreed = theirs.count;
      continue;
    }
    return "ranks " + std::to_string(other) + " and " + std::to_string(rank) +
           " have not made the same NCCL calls: among their calls " + std::to_string(kind.agreed + 1) +
           " to " + std::to_string(theirs.count) + " of " + name_of(static_cast<Collective>(which)) +
           " some differ (the last are " + theirs.words + " on rank " + std::to_string(other) + ", " +
           mine.words + " on rank " + std::to_string(rank) + "). Values of equal sizes have been mixed up";
  }
  return std::nullopt;
}

}  // namespace zerorun
