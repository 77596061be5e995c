// Tells ranks that are out of step from ranks that are missing: after a failed wait every rank says in the
// rendezvous' store what it was waiting for. Owned by a communicator; any thread.
#pragma once

#include <atomic>
#include <optional>
#include <string>
#include <torch/csrc/distributed/c10d/Store.hpp>
#include <vector>

#include "comm/communicator.h"

namespace zerorun {

class Testimony {
 public:
  Testimony(c10::intrusive_ptr<c10d::Store> store, int rank) : store_(std::move(store)), rank_(rank) {}

  /// A wait has failed: the connections are of no more use.
  void mark_broken() { broken_ = true; }
  bool broken() const { return broken_; }

  /// The error to throw when one of `ranks` waits for something else than `call`. Takes half a second at
  /// most, and a quarter more on rank 0.
  std::optional<std::string> disagreement(const CollectiveCall& call, const std::vector<int>& ranks) const;

 private:
  c10::intrusive_ptr<c10d::Store> store_;
  int rank_;
  std::atomic<bool> broken_ = false;
};

}  // namespace zerorun
