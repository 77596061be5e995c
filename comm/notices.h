// Short texts that ranks leave for each other under names, outside of the order of collectives: for threads
// that work beside training. Each user opens a board (Communicator::open_notices()), whose names only it
// uses; one thread at a time.
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

  // All throw CommError if the ranks' store is gone.

  virtual void post(const std::string& name, const std::string& text, const Deadline& deadline) = 0;
  /// Waits for the text under the name; nothing if no rank has posted it by the deadline.
  virtual std::optional<std::string> await(const std::string& name, const Deadline& deadline) = 0;
  virtual void remove(const std::string& name, const Deadline& deadline) = 0;
};

/// The notices of ranks that are threads of one process, which they share.
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

/// The board of one rank-thread. `board`: the same on all ranks, different for every board.
std::unique_ptr<Notices> make_notices(std::shared_ptr<NoticesInMemory> texts, int board);

class JobStore;
/// The board of one rank process: keys in the ranks' store.
std::unique_ptr<Notices> make_notices(const std::shared_ptr<const JobStore>& store, int board);

}  // namespace zerorun
