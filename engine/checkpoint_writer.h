// Writes checkpoints in a thread of its own while training goes on: each rank writes its files, rank 0 the
// manifest, and the ranks agree on the outcome by notices, not by training's collectives. Owned by the
// engine. [Note: the state at the call]
//
// A checkpoint has the state at the call of save_checkpoint(). Slices are read in place, so whoever is about
// to change one calls keep(bucket) first: it copies what has not been written yet. State that can change
// unseen is copied at the call.
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
  Manifest manifest;                                               // without files; `numbers`: this rank's
  std::vector<std::vector<std::weak_ptr<MemorySnapshot>>> pinned;  // by bucket
  std::string failure = {};  // why this rank has no part, as failure_of() returns it
};

class CheckpointWriter {
 public:
  /// `communicator` outlives it.
  explicit CheckpointWriter(Communicator& communicator);
  /// Waits for the save under way; during an exception it stops waiting for other ranks after about 2
  /// seconds. If the last save failed and wait() has not reported it, calls note_failure() (base/program.h).
  ~CheckpointWriter();
  CheckpointWriter(const CheckpointWriter&) = delete;
  CheckpointWriter& operator=(const CheckpointWriter&) = delete;

  /// The snapshots that a part reads. No save may be under way.
  StatePins& pins() { return pins_; }
  /// The file of that name in an earlier checkpoint if its content is still current, else null. No save may
  /// be under way.
  const PublishedFile* published(const std::string& name) const;
  /// To be called when the content of that file is about to change. Any thread.
  void forget_published(const std::string& name);
  /// Forgets all of them.
  void forget_published();
  /// Starts a save and returns at once. No other save may be under way. All ranks call it in the same order.
  /// `files` outlives the save.
  void start(CheckpointPart part, FileSystem& files);
  /// Returns when no save is under way and no old checkpoint is being removed.
  void finish();
  /// Returns when the last checkpoint is published. Throws its failure, the same on all ranks.
  void wait();
  /// To be called before the bucket's slices change. Any thread. If it throws (an allocation failed), they
  /// must not change.
  void keep(int bucket);
  void keep_all();

  bool is_writing() const;
  /// Of the last save: bytes written of this rank's files, and their total.
  int64_t written_bytes() const { return written_; }
  int64_t bytes() const { return bytes_; }
  /// Of the last save: bytes that keep() has copied, and how long its callers waited.
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
  std::unique_ptr<Notices> notices_;  // used by the thread only
  int64_t saves_ = 0;
  std::thread thread_;
  std::shared_future<std::string> outcome_;  // of the last save: its failure, or empty
  bool failure_is_logged_ = false;
  std::atomic<std::chrono::steady_clock::time_point> patience_ends_;
  mutable std::mutex mutex_;  // guards the next three
  std::vector<std::vector<std::weak_ptr<MemorySnapshot>>> pinned_;
  std::map<std::string, PublishedFile> published_;
  std::set<std::string> outdated_;         // names of published files whose content has changed since
  std::atomic<bool> reads_state_ = false;  // pinned state is still to be written
  std::atomic<int64_t> written_ = 0;
  std::atomic<int64_t> kept_ = 0;
  std::atomic<int64_t> keeping_ns_ = 0;
  int64_t bytes_ = 0;
};

}  // namespace zerorun
