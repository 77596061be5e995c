// One connection to the key-value store where the ranks of a job meet. Every call has a deadline, since
// c10d's own calls never return while the store's process is stopped, whatever their timeout. Every value
// carries the job's seal (seal.h): a value from another job is an error. Owned by the communicators that
// use it; any thread.
#pragma once

#include <future>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <torch/csrc/distributed/c10d/Store.hpp>
#include <type_traits>
#include <utility>
#include <vector>

#include "base/error.h"
#include "comm/deadline.h"
#include "comm/seal.h"

namespace zerorun {

class JobStore;
using StorePointer = std::shared_ptr<const JobStore>;
using Connection = c10::intrusive_ptr<c10d::Store>;

/// The store did not answer by the deadline, or its process has ended.
class StoreError : public CommError {
 public:
  StoreError(const std::string& message, bool is_silent) : CommError(message), is_silent_(is_silent) {}
  bool is_silent() const { return is_silent_; }

 private:
  bool is_silent_;
};

/// How long after a deadline the store may take to report it itself.
inline constexpr std::chrono::milliseconds kTimeToAnswer(2000);

/// How long rank 0, which keeps the store, gives the other ranks to read what it has published before it
/// reports its own error and perhaps exits.
inline constexpr std::chrono::milliseconds kTimeToRead(250);

class JobStore {
 public:
  /// `keeper`, for messages: the process that runs the store. `prefix` is put in front of all keys.
  JobStore(Connection connection, std::string keeper, const Seal& seal, std::string prefix);

  /// The same store with a key space of its own.
  StorePointer part(const std::string& name) const;

  // All throw StoreError, and CommError for a value that does not come from a rank of this job.

  void set(const std::string& key, const std::string& value, const Deadline& deadline) const;
  /// Waits for the value; nothing if there is none by the deadline.
  std::optional<std::string> await(const std::string& key, const Deadline& deadline) const;
  /// The same for all keys at once, in two messages; nothing if any value is missing at the deadline.
  std::optional<std::vector<std::string>> await_all(const std::vector<std::string>& keys,
                                                    const Deadline& deadline) const;
  /// The value, if there is one now.
  std::optional<std::string> find(const std::string& key, const Deadline& deadline) const;
  /// Stores `value` unless the key has one, and returns the key's value: of all ranks that claim a key one
  /// gets its own value back.
  std::string claim(const std::string& key, const std::string& value, const Deadline& deadline) const;
  void remove(const std::string& key, const Deadline& deadline) const;

  /// For c10d, whose calls have no deadline: all of them end at this one.
  Connection for_c10d(const Deadline& deadline) const;

 private:
  struct Line;

  JobStore(std::shared_ptr<Line> line, const Seal& seal, std::string prefix);

  template <typename Talk>
  std::invoke_result_t<Talk, c10d::Store&> talk(Talk talk, const Deadline& deadline) const;
  std::string opened(const std::string& key, const std::vector<uint8_t>& stored) const;

  std::shared_ptr<Line> line_;
  Seal seal_;
  std::string prefix_;
};

/// The outcome of a conversation with a store. Errors are passed as text, not as an exception, which two
/// threads could come to own.
template <typename Value>
struct Answer {
  std::optional<Value> value;
  std::string failure;  // why there is none
};

/// The text of Gloo's and c10d's errors without their backtrace.
std::string first_line(const char* message);

/// Starts `talk` with a store in a thread of its own. The caller waits for the answer only until its
/// deadline and then abandons the thread, so `talk` must own everything that it uses.
template <typename Talk>
std::future<Answer<std::invoke_result_t<Talk>>> run_detached(Talk talk) {
  using Told = Answer<std::invoke_result_t<Talk>>;
  std::packaged_task<Told()> task([talk = std::move(talk)]() mutable -> Told {
    try {
      return {talk(), ""};
    } catch (const std::exception& error) {
      return {std::nullopt, first_line(error.what())};
    }
  });
  auto result = task.get_future();
  std::thread(std::move(task)).detach();
  return result;
}

/// "rank 0, which keeps the store of all ranks, does not answer: it stands still or cannot be reached"
std::string words_of_silence(const std::string& keeper);

// Runs `body`, which calls the store; adds `purpose` to its errors.
template <typename Body>
auto told_why(const std::string& purpose, const Deadline& deadline, const Body& body) {
  try {
    return body();
  } catch (const StoreError& error) {
    if (!error.is_silent()) throw CommError(purpose + ": " + error.what());
    throw CommError(missed_end(purpose, deadline.timeout()) + ", and " + error.what());
  }
}

}  // namespace zerorun
