// Writes checkpoints while training goes on, in a thread of its own: each rank its files, rank 0 the
// manifest, and all ranks come to one outcome, through notices and not through training's collectives. Owned
// by the engine. [Note: the state at the call]
//
// What is written is the state at the call of save_checkpoint(). Slices are read where they lie, so whoever
// is about to change one calls keep(bucket) before: it copies what has not been written yet. What nobody
// would see changing has been copied at the call.
#pragma once

#include <atomic>
#include <chrono>
#include <filesystem>
#include <future>
#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include "base/process.h"
#include "checkpoint/manifest.h"
#include "checkpoint/state_file.h"
#include "comm/communicator.h"
#include "comm/notices.h"
#include "engine/state_pins.h"

namespace zerorun {

class SaveAgreement;

/// This rank's part of a checkpoint.
struct CheckpointPart {
  std::filesystem::path directory;
  bool save_latest = true;
  int64_t keep_last = 0;  // 0: all
  std::vector<FileToWrite> files;
  Manifest manifest;                                            // without files; `numbers`: this rank's
  std::vector<std::vector<std::weak_ptr<PinnedBytes>>> pinned;  // by bucket
  std::string failure = {};  // why this rank has none, as failure_of() has it
};

class CheckpointWriter {
 public:
  /// `communicator` outlives it.
  explicit CheckpointWriter(Communicator& communicator);
  /// Waits for what is being written, and where an exception ends the engine not for long for other ranks.
  /// Where it failed, and wait() has told nobody, run_program() is told.
  ~CheckpointWriter();
  CheckpointWriter(const CheckpointWriter&) = delete;
  CheckpointWriter& operator=(const CheckpointWriter&) = delete;

  /// What a part reads. Nothing may be being written.
  StatePins& pins() { return pins_; }
  /// The file of that name of an earlier checkpoint, which nobody has written to since; else null. Nothing
  /// may be being written.
  const PublishedFile* published(const std::string& name) const;
  /// What the file of that name has changes. Any thread.
  void forget_published(const std::string& name);
  /// What all of them have does.
  void forget_published();
  /// Returns at once. Nothing may be being written. All ranks call it in the same order. `files` outlives the
  /// writing.
  void start(CheckpointPart part, FileSystem& files);
  /// Returns when nothing is being written, and nothing old is being removed.
  void finish();
  /// Returns when the last one is published. Throws what went wrong with it, the same on all ranks.
  void wait();
  /// The slices of the bucket are about to change. Any thread. Throws what allocation throws, and then they
  /// may not.
  void keep(int bucket);
  void keep_all();

  bool is_writing() const;
  /// Of this rank's files of the last one: how much is written, and of how much.
  int64_t written_bytes() const { return written_; }
  int64_t bytes() const { return bytes_; }
  /// Copied by keep() for the last one, and how long its callers stood still.
  int64_t kept_bytes() const { return kept_; }
  double keeping_ms() const { return static_cast<double>(keeping_ns_) * 1e-6; }

 private:
  void check_not_forked() const;
  void copy_unwritten(int bucket);
  void write(CheckpointPart& part, FileSystem& files, int64_t number, std::promise<std::string>& outcome);
  std::string write_files(CheckpointPart& part, FileSystem& files, SaveAgreement& agreement);

  Communicator* communicator_;
  HomeProcess home_;
  StatePins pins_;
  std::unique_ptr<Notices> notices_;  // the thread's
  int64_t saves_ = 0;
  std::thread thread_;
  std::shared_future<std::string> outcome_;  // of the last one: why it failed, or empty
  bool failure_is_told_ = false;
  std::atomic<std::chrono::steady_clock::time_point> patience_ends_;
  mutable std::mutex mutex_;  // guards the next three
  std::vector<std::vector<std::weak_ptr<PinnedBytes>>> pinned_;
  std::map<std::string, PublishedFile> published_;
  std::set<std::string> outdated_;  // whose contents have changed since they were read for a checkpoint
  std::atomic<bool> reads_state_ = false;  // what is pinned is still to be written
  std::atomic<int64_t> written_ = 0;
  std::atomic<int64_t> kept_ = 0;
  std::atomic<int64_t> keeping_ns_ = 0;
  int64_t bytes_ = 0;
};

}  // namespace zerorun
