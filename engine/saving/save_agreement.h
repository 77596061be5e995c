// Lets the ranks' writer threads agree on the outcome of one checkpoint. They exchange notices
// (comm/notices.h), which are independent of training's collectives. Used by the writer's thread.
#pragma once

#include <atomic>
#include <chrono>
#include <string>
#include <vector>

#include "comm/agreement.h"
#include "comm/communicator.h"
#include "comm/notices.h"

namespace zerorun {

// A rank waits for another rank at most for the communicator's timeout, which starts anew whenever that rank
// reports progress. The caller defines the texts of say_ready() and say_part().
class SaveAgreement {
 public:
  /// All arguments must outlive this object. `number`: identifies the save, the same on all ranks.
  /// `patience_ends`: when to stop waiting for other ranks.
  SaveAgreement(Notices& notices, const Communicator& communicator, int64_t number, const std::string& tag,
                const std::atomic<std::chrono::steady_clock::time_point>& patience_ends);

  // Rank 0 posts these texts; the ranks wait for them.
  void say_ready(const std::string& text) { post("ready", text); }
  void say_outcome(const Failure& failure) { post("outcome", failure.encoded()); }
  std::string await_ready() { return await("ready", 0); }
  Failure await_outcome() { return Failure::decoded(await("outcome", 0)); }

  // For hosts without a common folder: rank 0 posts the manifest, or an empty text if the save has failed.
  // Each rank that has a folder to publish posts the result.
  void say_manifest(const std::string& text) { post("manifest", text); }
  std::string await_manifest() { return await("manifest", 0); }
  void say_published(const Failure& failure);
  Failure await_published(int rank);

  /// Posts why this rank has no part, so that other ranks stop waiting for its work.
  void say_broken(const Failure& failure) { post("broken", failure.encoded()); }
  /// Returns what say_broken() has posted, once a rank has called it.
  Failure broken();

  // Each rank posts the text of its part; rank 0 waits for the texts of all ranks.
  void say_part(const std::string& text);
  std::string await_part(int rank);

  /// Reports that this rank is still at work. To be called often; it posts about once a second, or every
  /// quarter of the communicator's timeout if that is shorter.
  void note_progress();
  /// As note_progress(), for a rank that waits for others of its process or for the file system. Throws
  /// CommError if this rank is to wait no longer.
  void note_waiting();
  /// To be called when the outcome is known. On rank 0, whose process may host the notices, returns only when
  /// all ranks have read the outcome, except ranks whose part did not arrive.
  void leave();

 private:
  void post(const std::string& name, const std::string& text);
  std::string await(const std::string& name, int rank);
  bool has_progressed(int rank);

  Notices* notices_;
  const Communicator* communicator_;
  std::string prefix_;
  std::string what_;
  const std::atomic<std::chrono::steady_clock::time_point>* patience_ends_;
  std::vector<char> is_missing_;       // by rank, on rank 0: its part did not arrive
  std::vector<std::string> progress_;  // by rank: the last progress that it posted
  int64_t posted_progress_ = 0;
  std::chrono::steady_clock::time_point last_posted_ = std::chrono::steady_clock::now();
};

}  // namespace zerorun
