// Short texts that ranks leave for each other by name, outside of the order of collectives: for threads that
// work beside training. Whoever needs some opens a board of its own (Communicator::open_notices()), whose
// names nobody else uses, and keeps it; one thread at a time.
#pragma once

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>

#include "comm/deadline.h"

namespace zerorun {

class Notices {
 public:
  virtual ~Notices() = default;

  // All throw CommError where the ranks' store is gone.

  virtual void post(const std::string& name, const std::string& text, const Deadline& deadline) = 0;
  /// The text, once a rank has posted it; none: not by the deadline.
  virtual std::optional<std::string> await(const std::string& name, const Deadline& deadline) = 0;
  virtual void remove(const std::string& name, const Deadline& deadline) = 0;
};

/// Ranks that are threads of one process share one of these.
class NoticesInMemory {
 public:
  void post(const std::string& name, const std::string& text);
  std::optional<std::string> await(const std::string& name, const Deadline& deadline);
  void remove(const std::string& name);

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  std::map<std::string, std::string> texts_;
};

/// One rank's of ranks that are threads. `board`: the same on all ranks, and for nobody else.
std::unique_ptr<Notices> make_notices(std::shared_ptr<NoticesInMemory> texts, int board);

class JobStore;
/// One rank's of ranks that are processes: keys of the store at which they have met.
std::unique_ptr<Notices> make_notices(const std::shared_ptr<const JobStore>& store, int board);

}  // namespace zerorun
