// Exchanges one short text of each rank through the ranks' store. Called by the thread that connects.
#pragma once

#include <string>
#include <vector>

#include "comm/deadline.h"
#include "comm/meeting/job_store.h"

namespace zerorun {

/// Exchanges one word of each rank under `name`; returns them by rank. Each rank sends a constant number of
/// messages: rank 0 gathers all words and publishes them as one value. Throws CommError whose message begins
/// with `purpose` and names the ranks that have posted no word by the deadline: `first` is the number in the
/// job of rank 0 of those that exchange.
std::vector<std::string> exchange_words(const JobStore& store, const std::string& name, int rank,
                                        int world_size, const std::string& word, const Deadline& deadline,
                                        const std::string& purpose = "connecting the ranks", int first = 0);

/// Call this before you throw an error that all ranks throw. Rank 0, which keeps the store, then waits until
/// all other ranks have called this too, or until the deadline. So rank 0 does not end while the other ranks
/// still read the store. Never throws. `name`: another one for each call with one store.
void keep_store_until_read(const JobStore& store, int rank, int world_size, const Deadline& deadline,
                           const std::string& name = "parted");

}  // namespace zerorun
