// The key-value store at which the ranks of a job meet: rank 0 keeps it, or torchrun's agent does. Owned by
// the communicators that use it; any thread. Each user has keys under a prefix of its own.
#pragma once

#include <future>
#include <string>
#include <thread>
#include <torch/csrc/distributed/c10d/Store.hpp>
#include <type_traits>
#include <utility>
#include <vector>

#include "comm/deadline.h"

namespace zerorun {

struct Environment;
using StorePointer = c10::intrusive_ptr<c10d::Store>;

/// Opens the store that `environment` (world size > 1) names, and returns when every rank has. The others can
/// read what this rank brings, one word. Throws UserError (port in use) or CommError naming the ranks that
/// did not come.
StorePointer join_store(const Environment& environment, const std::string& word, const Deadline& deadline);

/// The ranks that did not bring `word`.
std::vector<int> ranks_without(c10d::Store& store, int world_size, const std::string& word);

/// Every rank's word under `name`, by rank. Throws CommError naming those that gave none by the deadline.
std::vector<std::string> exchange_words(c10d::Store& store, const std::string& name, int rank, int world_size,
                                        const std::string& word, const Deadline& deadline);

/// For errors that all ranks have: where rank 0 keeps the store, it comes back when all others have come here
/// too, and so have read what they need. Never throws.
void part_from_store(c10d::Store& store, int rank, int world_size, const Deadline& deadline);

/// The same store with keys that nobody else sees.
StorePointer part_of(const StorePointer& store, const std::string& name);

/// Starts `talk` with a store in a thread of its own. Where the store's keeper stands still no call returns,
/// whatever timeout it was given: whoever has a deadline waits for the result no longer than that. The thread
/// is then left to itself, so `talk` has to own what it uses.
template <typename Talk>
std::future<std::invoke_result_t<Talk>> start_talk(Talk talk) {
  std::packaged_task<std::invoke_result_t<Talk>()> task(std::move(talk));
  auto result = task.get_future();
  std::thread(std::move(task)).detach();
  return result;
}

/// Gloo's and c10d's errors without the backtrace they carry.
std::string first_line(const char* message);

}  // namespace zerorun
