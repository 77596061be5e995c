// A rank's access to the store of its job, which rank 0 keeps, or torchrun's agent. A process keeps one for
// its life: it claims its rank once, and its connects are numbered, each with its own keys, so all ranks
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
  StorePointer store;              // of this rendezvous only
  std::vector<std::string> words;  // by rank: the text that each rank gave
  uint64_t job = 0;                // identifies this rendezvous among all of all jobs
};

/// Joins the store that `environment` (world size > 1) names, and returns when every rank has. Throws
/// UserError (port in use, rank claimed by another process, store of another job) or CommError naming the
/// missing ranks.
Joined join_store(const Environment& environment, const std::string& word, const Deadline& deadline);

/// Exchanges one word of each rank under `name`; returns them by rank. Throws CommError, which begins with
/// `purpose`, naming the ranks without a word by the deadline.
std::vector<std::string> exchange_words(const JobStore& store, const std::string& name, int rank,
                                        int world_size, const std::string& word, const Deadline& deadline,
                                        const std::string& purpose = "connecting the ranks");

/// For errors that all ranks throw: on the rank that keeps the store it returns when all other ranks have
/// called it too, and so have read what they need. Never throws.
void keep_store_until_read(const JobStore& store, int rank, int world_size, const Deadline& deadline);

}  // namespace zerorun
