// Connects a rank to the store of its job, which rank 0 or torchrun's agent hosts. A process claims its rank
// once and keeps the store for its life. Its connects are numbered, each with keys of its own, so all ranks
// must connect in the same order. Any thread.
#pragma once

#include <string>
#include <vector>

#include "comm/deadline.h"
#include "comm/job_store.h"

namespace zerorun {

struct Environment;

/// The result of one rendezvous of all ranks.
struct Joined {
  StorePointer store;              // for this rendezvous only
  std::vector<std::string> words;  // by rank: the text that each rank passed to join_store()
  uint64_t job = 0;                // unique to this rendezvous among all rendezvous of all jobs
};

/// Joins the store of `environment` (world size > 1) and returns when every rank has joined. Throws UserError
/// if the port is in use, another process has claimed the rank, or the store belongs to another job. Throws
/// CommError naming the missing ranks.
Joined join_store(const Environment& environment, const std::string& word, const Deadline& deadline);

/// Publishes `word` under `name` and returns the words of all ranks, by rank. Throws CommError, whose message
/// begins with `purpose` and names the ranks whose word is missing at the deadline.
std::vector<std::string> exchange_words(const JobStore& store, const std::string& name, int rank,
                                        int world_size, const std::string& word, const Deadline& deadline,
                                        const std::string& purpose = "connecting the ranks");

/// Call it on all ranks before all of them throw. On rank 0, whose exit ends the store, it returns when all
/// other ranks have called it, since they may still have to read from the store. Never throws.
void keep_store_until_read(const JobStore& store, int rank, int world_size, const Deadline& deadline);

}  // namespace zerorun
