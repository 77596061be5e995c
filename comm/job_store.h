// One connection to the key-value store at which the ranks of a job meet. Every call has a deadline: where
// the store's keeper stands still no call of c10d returns, whatever timeout it was given. Every value has the
// job's seal (seal.h): what others write is an error, not an answer. Owned by the communicators that use it;
// any thread.
#pragma once

#include <future>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <torch/csrc/distributed/c10d/Store.hpp>
#include <type_traits>
#include <utility>

#include "base/error.h"
#include "comm/deadline.h"
#include "comm/seal.h"

namespace zerorun {

class JobStore;
using StorePointer = std::shared_ptr<const JobStore>;
using Connection = c10::intrusive_ptr<c10d::Store>;

/// The store has not answered by the deadline, or it has gone.
class StoreError : public CommError {
 public:
  StoreError(const std::string& message, bool is_silent) : CommError(message), is_silent_(is_silent) {}
  bool is_silent() const { return is_silent_; }

 private:
  bool is_silent_;
};

/// How long after a deadline the store may take to say by itself that it is over.
inline constexpr std::chrono::milliseconds kTimeToAnswer(2000);

class JobStore {
 public:
  /// `keeper`, for messages: whose process the store is in. All keys get `prefix` in front of them.
  JobStore(Connection connection, std::string keeper, const Seal& seal, std::string prefix);

  /// The same store with keys that nobody else sees.
  StorePointer part(const std::string& name) const;

  // All throw StoreError, and CommError for a value that no rank of this job has written.

  void set(const std::string& key, const std::string& value, const Deadline& deadline) const;
  /// The value, when there is one; none: not by the deadline.
  std::optional<std::string> await(const std::string& key, const Deadline& deadline) const;
  /// The value, if there is one by now.
  std::optional<std::string> find(const std::string& key, const Deadline& deadline) const;
  /// Stores `value` if there is none yet. What then is there: of all who claim a key one gets its own.
  std::string claim(const std::string& key, const std::string& value, const Deadline& deadline) const;
  void remove(const std::string& key, const Deadline& deadline) const;

  /// For c10d, which has no deadlines: all that it asks ends at this one.
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

/// What became of a talk with a store. No exception goes from its thread to another, which may own it by
/// then.
template <typename Value>
struct Answer {
  std::optional<Value> value;
  std::string failure;  // why there is none
};

/// Gloo's and c10d's errors without the backtrace they carry.
std::string first_line(const char* message);

/// Starts `talk` with a store in a thread of its own. Whoever has a deadline waits for the answer no longer
/// than that. The thread is then left to itself, so `talk` has to own what it uses.
template <typename Talk>
std::future<Answer<std::invoke_result_t<Talk>>> start_talk(Talk talk) {
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

}  // namespace zerorun
