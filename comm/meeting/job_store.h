// A connection to the key-value store at which the ranks of a job meet. Every call has a deadline, because
// c10d's own calls ignore their timeout while the store's process is stopped. Every value is authenticated
// with the job's seal (base/seal.h): a value from another job is an error. Owned by the communicators that
// use it. Any thread.
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
#include "base/seal.h"
#include "comm/deadline.h"

namespace zerorun {

class JobStore;
using StorePointer = std::shared_ptr<const JobStore>;
using Connection = c10::intrusive_ptr<c10d::Store>;

/// Thrown if the store did not answer by the deadline (is_silent()), or if its process has ended.
class StoreError : public CommError {
 public:
  StoreError(const std::string& message, bool is_silent) : CommError(message), is_silent_(is_silent) {}
  bool is_silent() const { return is_silent_; }

 private:
  bool is_silent_;
};

/// A call waits this much longer than its deadline, so that the store's own timeout error can arrive. Calls
/// that need not wait for other ranks use this time as their whole deadline.
inline constexpr std::chrono::milliseconds kTimeToAnswer(2000);

/// The time that rank 0, which keeps the store, waits after it has published a failure and before it throws
/// its own error. The other ranks need this time to read the store, because rank 0 may exit after its error.
inline constexpr std::chrono::milliseconds kTimeToRead(250);

class JobStore {
 public:
  /// `keeper` names the process that runs the store, for messages. `prefix` is prepended to all keys.
  JobStore(Connection connection, std::string keeper, const Seal& seal, std::string prefix);

  /// Returns a view of the same store whose keys are prefixed with `name`.
  StorePointer part(const std::string& name) const;

  // All functions throw StoreError. Functions that read also throw CommError for a value that was not written
  // by a rank of this job.

  void set(const std::string& key, const std::string& value, const Deadline& deadline) const;
  /// Waits until the key has a value. Returns nothing if it has none by the deadline.
  std::optional<std::string> await(const std::string& key, const Deadline& deadline) const;
  /// Like await(), for all keys at once: sends two messages to the store in total. Returns nothing if any
  /// value is missing at the deadline.
  std::optional<std::vector<std::string>> await_all(const std::vector<std::string>& keys,
                                                    const Deadline& deadline) const;
  /// Returns the key's value if it has one now. Does not wait for one.
  std::optional<std::string> find(const std::string& key, const Deadline& deadline) const;
  /// Stores `value` if the key has no value yet, and returns the key's value. So exactly one of the ranks
  /// that claim a key gets its own value back.
  std::string claim(const std::string& key, const std::string& value, const Deadline& deadline) const;
  void remove(const std::string& key, const Deadline& deadline) const;

  /// Returns this store as a c10d::Store, whose calls all end at `deadline`. c10d's own calls have no overall
  /// deadline.
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

/// The outcome of a call to the store. An error is passed as text, because two threads could otherwise own
/// the same exception object.
template <typename Value>
struct Answer {
  std::optional<Value> value;
  std::string failure;  // the error's text if there is no value
};

/// Returns the message of a Gloo or c10d error without its backtrace.
std::string first_line(const char* message);

/// Runs `talk` in a detached thread and returns a future of its result. A caller that reaches its deadline
/// abandons the thread, so `talk` must own everything that it uses.
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

/// "rank 0, which keeps the store of all ranks, does not answer: it is stopped or cannot be reached"
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
