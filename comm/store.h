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

// The parts of join_store() once the store is reached; `connection`: to any store that all ranks have.

/// Throws UserError if another process has this rank.
void claim_rank(const Connection& connection, const Environment& environment, const Deadline& deadline);

/// Returns when all ranks have come to their connect of this number.
Joined join_over(const Connection& connection, const Environment& environment, int number,
                 const std::string& word, const Deadline& deadline);

}  // namespace zerorun
