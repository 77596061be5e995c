// Short texts that ranks post for each other under names, outside of the order of collectives. Threads that
// run beside training use them. Each user opens its own board with Communicator::open_notices(); names are
// local to the board. One thread at a time.
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

  // All functions throw CommError if the ranks' store is gone.

  virtual void post(const std::string& name, const std::string& text, const Deadline& deadline) = 0;
  /// Waits for the text posted under `name`. Returns nothing if no rank has posted it by the deadline.
  virtual std::optional<std::string> await(const std::string& name, const Deadline& deadline) = 0;
  virtual void remove(const std::string& name, const Deadline& deadline) = 0;
};

/// The texts of ranks that are threads of one process. All of these ranks share one object.
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

/// The board of a rank that is a thread. `board` is the board's number, which is the same on all ranks and
/// differs between boards.
std::unique_ptr<Notices> make_notices(std::shared_ptr<NoticesInMemory> texts, int board);

}  // namespace zerorun
