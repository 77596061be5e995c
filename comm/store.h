// How a rank comes to the store of its job: rank 0 keeps it, or torchrun's agent does. A process has one for
// its life: it takes its rank once, and its connects are numbered, each with keys of its own, so all ranks
// have to connect in the same order. Any thread.
#pragma once

#include <string>
#include <vector>

#include "comm/deadline.h"
#include "comm/job_store.h"

namespace zerorun {

struct Environment;

/// A connect that every rank has come to.
struct Joined {
  StorePointer store;              // for this connect
  std::vector<std::string> words;  // what each rank has brought
  uint64_t job = 0;                // tells this connect of this job from all others
};

/// Joins the store that `environment` (world size > 1) names, and returns when every rank has. Throws
/// UserError (port in use, a rank that another process has, a store of another job) or CommError naming the
/// ranks that did not come.
Joined join_store(const Environment& environment, const std::string& word, const Deadline& deadline);

/// Every rank's word under `name`, by rank. Throws CommError, which begins with `purpose`, naming those that
/// gave none by the deadline.
std::vector<std::string> exchange_words(const JobStore& store, const std::string& name, int rank,
                                        int world_size, const std::string& word, const Deadline& deadline,
                                        const std::string& purpose = "connecting the ranks");

/// For errors that all ranks have: where rank 0 keeps the store, it comes back when all others have come here
/// too, and so have read what they need. Never throws.
void part_from_store(const JobStore& store, int rank, int world_size, const Deadline& deadline);

}  // namespace zerorun
