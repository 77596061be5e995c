// Connects a rank to the store of its job, which rank 0 or torchrun's agent hosts. A process claims its rank
// once, and keeps the store until it ends. Its calls of join_store() are numbered, and each call uses keys of
// its own, so all ranks must make these calls in the same order. Any thread.
#pragma once

#include <string>
#include <vector>

#include "comm/deadline.h"
#include "comm/meeting/job_store.h"

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

// The two steps that join_store() takes after it has reached the store. Tests call them with a `connection`
// to another store that the ranks share.

/// Throws UserError if another process has this rank.
void claim_rank(const Connection& connection, const Environment& environment, const Deadline& deadline);

/// Returns when all ranks have called this with the same `number`. join_store() passes the number of its
/// earlier calls.
Joined join_over(const Connection& connection, const Environment& environment, int number,
                 const std::string& word, const Deadline& deadline);

}  // namespace zerorun
