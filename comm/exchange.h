// Exchanges one short text of each rank through the ranks' store. Called by the thread that connects.
#pragma once

#include <string>
#include <vector>

#include "comm/deadline.h"
#include "comm/job_store.h"

namespace zerorun {

/// Exchanges one word of each rank under `name`; returns them by rank. Each rank sends a constant number of
/// messages: rank 0 gathers all words and publishes them as one value. Throws CommError whose message begins
/// with `purpose` and names the ranks that have posted no word by the deadline.
std::vector<std::string> exchange_words(const JobStore& store, const std::string& name, int rank,
                                        int world_size, const std::string& word, const Deadline& deadline,
                                        const std::string& purpose = "connecting the ranks");

/// Call it before you throw an error that all ranks throw. On rank 0, which keeps the store, it returns when
/// all other ranks have called it too, or at the deadline: then the others have read what they need, and rank
/// 0 may end. Never throws.
void keep_store_until_read(const JobStore& store, int rank, int world_size, const Deadline& deadline);

}  // namespace zerorun
