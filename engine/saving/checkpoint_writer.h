// Writes checkpoints in a separate thread while training goes on: each rank writes its own files, and rank 0
// also the manifest. The ranks agree on the outcome by notices (comm/notices.h), apart from training's
// collectives. Owned by the engine.
//
// [Note: the state at the call] A checkpoint has the state at the call of save_checkpoint(). Slices in host
// memory are read in place, so code that is about to change a slice calls keep(bucket) first, which copies
// what has not been written yet. State that can change without such a call is copied in save_checkpoint().
#pragma once

#include <atomic>
#include <chrono>
#include <filesystem>
#include <future>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "base/process.h"
#include "checkpoint/state_file.h"
#include "comm/communicator.h"
#include "comm/notices.h"
#include "engine/saving/checkpoint_publisher.h"
#include "engine/saving/frozen_files.h"
#include "engine/saving/state_pins.h"

namespace zerorun {

/// This rank's part of a checkpoint.
struct CheckpointPart : SavedTag {
  std::vector<checkpoint::FileToWrite> files = {};
  std::vector<std::vector<std::weak_ptr<checkpoint::MemorySnapshot>>> pinned = {};  // by bucket
  Failure failure = {};  // why this part could not be made
};

class CheckpointWriter {
 public:
  /// `communicator` must outlive this object.
  explicit CheckpointWriter(Communicator& communicator);
  /// Waits for the save in progress, but during stack unwinding waits for other ranks only about 2 seconds.
  /// If the last save failed and wait() has not reported that, calls note_failure() (base/program.h).
  ~CheckpointWriter();
  CheckpointWriter(const CheckpointWriter&) = delete;
  CheckpointWriter& operator=(const CheckpointWriter&) = delete;

  /// Waits for the save in progress. Later saves write to `files`, which must outlive them, instead of this
  /// machine's file system.
  void write_to(checkpoint::FileSystem& files);
  /// The snapshots from which the files of a part are written. No save may be in progress, unless their
  /// copies are made at once.
  StatePins& pins() { return pins_; }
  /// The files to which the next save may link. No save may be in progress, unless a function says otherwise.
  FrozenFiles& frozen() { return frozen_; }
  /// Starts a save in a thread and returns at once. If no thread can be created, saves before it returns. No
  /// other save may be in progress. All ranks start their saves in the same order.
  void start(CheckpointPart part);
  /// Returns when no save is in progress and no old checkpoint is being removed.
  void finish();
  /// Returns when the last checkpoint is published. If it failed, throws the same error on all ranks.
  void wait();
  /// To be called before the bucket's slices change. Any thread. If keep() throws (an allocation failed), the
  /// slices must not change.
  void keep(int bucket);
  void keep_all();

  bool is_writing() const;
  /// Whether the last save is over and has failed.
  bool has_failed() const { return outcome_.valid() && !is_writing() && outcome_.get(); }
  /// This rank's files of the last save: bytes written so far, and bytes in total.
  int64_t written_bytes() const { return written_; }
  int64_t bytes() const { return bytes_; }
  /// Of the last save: bytes that keep() and keep_all() copied, and the time in ms that their callers spent
  /// on this.
  int64_t kept_bytes() const { return kept_; }
  double keeping_ms() const { return static_cast<double>(keeping_ns_) * 1e-6; }

 private:
  void check_not_forked() const;
  void copy_unwritten(int bucket);
  void write(CheckpointPart& part, int64_t number, std::promise<Failure>& outcome);
  std::string write_files(CheckpointPart& part, const std::filesystem::path& folder,
                          SaveAgreement& agreement);

  checkpoint::FileSystem* files_;
  Communicator* communicator_;
  HomeProcess home_;
  StatePins pins_;
  std::unique_ptr<Notices> notices_;  // used by thread_ only
  // The locks of the folders in which this rank has published, as long as the engine lives and the folders
  // exist. Used by thread_.
  std::map<std::filesystem::path, std::shared_ptr<checkpoint::FolderLock>> locks_;
  int64_t saves_ = 0;
  std::thread thread_;
  std::shared_future<Failure> outcome_;  // of the last save
  bool failure_is_logged_ = false;
  std::atomic<std::chrono::steady_clock::time_point> patience_ends_;
  FrozenFiles frozen_;
  std::mutex mutex_;  // guards pinned_
  std::vector<std::vector<std::weak_ptr<checkpoint::MemorySnapshot>>> pinned_;
  std::atomic<bool> reads_state_ = false;  // pinned state is still to be written
  std::atomic<int64_t> written_ = 0;
  std::atomic<int64_t> kept_ = 0;
  std::atomic<int64_t> keeping_ns_ = 0;
  int64_t bytes_ = 0;
};

}  // namespace zerorun
