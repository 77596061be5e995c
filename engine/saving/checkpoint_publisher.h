// One rank's side of publishing a checkpoint: where its files are written, and how the ranks agree that the
// tag is complete. Made for one save; used by the writer's thread.
//
// Without `node_local` all ranks write to the folder that rank 0 makes. With it, if a host does not see this
// folder, the host's first rank makes a folder with the same path for the ranks of that host. These folders
// are published first and rank 0's folder last, because rank 0's folder decides which tag is loaded. Every
// folder gets the whole manifest. So if the folders of all hosts are copied into one folder, that folder is
// an ordinary checkpoint.
#pragma once

#include <filesystem>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "checkpoint/manifest.h"
#include "checkpoint/publication.h"
#include "comm/communicator.h"
#include "engine/saving/save_agreement.h"

namespace zerorun {

/// The tag that is saved, the same on all ranks except for `manifest`.
struct SavedTag {
  std::filesystem::path directory;
  bool save_latest = true;
  int64_t keep_last = 0;          // number of checkpoints to keep; 0: all
  bool node_local = false;        // hosts may have no common folder
  checkpoint::Manifest manifest;  // without files; `numbers` of this rank only
};

class CheckpointPublisher {
 public:
  /// All arguments must outlive this object.
  CheckpointPublisher(checkpoint::FileSystem& files, const SavedTag& tag, SaveAgreement& agreement,
                      const Communicator& communicator);

  /// Rank 0 makes the tag's folder. Returns rank 0's failure, on all ranks.
  Failure open();
  /// Returns the folder for this rank's files, once it is there. Throws UserError if this host does not see
  /// it.
  std::filesystem::path folder();
  /// Posts this rank's part and publishes the tag. `part`: the facts about this rank's files as JSON.
  /// `failure`: why this rank has no part, if it has none. Returns the first failure of any rank, on all
  /// ranks.
  Failure publish(const std::string& part, const Failure& failure);
  /// After a publish() that returned no failure: removes the tags that `keep_last` does not keep.
  void remove_old() noexcept;
  /// The lock of the directory, on ranks that have made a folder there; else null.
  std::shared_ptr<checkpoint::FolderLock> lock() const {
    return publication_ ? publication_->lock() : nullptr;
  }
  /// Removes the folder that this rank has made, unless it is published.
  void close() { publication_.reset(); }

 private:
  void make_folder(const std::string& id);
  Failure publish_for_all();
  std::vector<int> collect_parts(checkpoint::Manifest& manifest, Failure& failure);
  Failure await_other_hosts(const std::vector<int>& ranks);
  /// Adds the rank to a failure, if there are several ranks.
  Failure named(const Failure& failure, int rank) const {
    return failure.on_rank(rank, communicator_->world_size());
  }
  void wait_until(const std::function<bool()>& is_there, std::chrono::milliseconds patience);

  checkpoint::FileSystem* files_;
  const SavedTag* tag_;
  SaveAgreement* agreement_;
  const Communicator* communicator_;
  std::string save_id_;  // tells this save from all others; rank 0 chooses it
  std::optional<checkpoint::Publication>
      publication_;  // on rank 0, and on ranks that have made a folder for their host
};

}  // namespace zerorun
