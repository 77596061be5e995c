#include "comm/testimony.h"

#include <chrono>
#include <exception>
#include <thread>

#include "comm/deadline.h"

namespace zerorun {
namespace {

std::string key(int rank) {
  return "zerorun/waiting/" + std::to_string(rank);
}

}  // namespace

std::optional<std::string> Testimony::disagreement(const CollectiveCall& call,
                                                   const std::vector<int>& ranks) const {
  constexpr std::chrono::milliseconds kPatience(500);
  const std::string agreed = std::string(name_of(call.kind)) + " of " + call.label + ", " +
                             std::to_string(call.input.numel()) + " elements\n";
  const std::string mine = agreed + describe(call);
  std::optional<std::string> result;
  try {
    store_->set(key(rank_), std::vector<uint8_t>(mine.begin(), mine.end()));
    const Deadline deadline(kPatience);
    for (int other : ranks) {
      store_->wait({key(other)}, deadline.remaining());
      const std::vector<uint8_t> bytes = store_->get(key(other));
      const std::string theirs(bytes.begin(), bytes.end());
      if (theirs.starts_with(agreed)) continue;
      result = describe_disagreement(rank_, describe(call), other, theirs.substr(theirs.find('\n') + 1));
      break;
    }
  } catch (const std::exception&) {
    // The rank has nothing to say, or the store has gone with rank 0.
  }
  // Rank 0 keeps the store: the others get time to read it.
  if (result && rank_ == 0) std::this_thread::sleep_for(kPatience / 2);
  return result;
}

}  // namespace zerorun
