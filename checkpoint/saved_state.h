// Reads elements of one state of one parameter from whichever files of a checkpoint have them. The run that
// reads may shard the states differently from the run that wrote them. Used by one thread.
#pragma once

#include <cstddef>
#include <filesystem>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "checkpoint/manifest.h"

namespace zerorun {

class SavedState {
 public:
  /// Opens a tag's folder and reads its manifest. `files` must outlive it. Throws UserError, which names the
  /// folder.
  SavedState(FileSystem& files, std::filesystem::path folder);

  const Manifest& manifest() const { return manifest_; }
  /// The dtype of the state in the checkpoint; empty if the checkpoint does not have the state.
  std::string dtype_of(const std::string& parameter, const std::string& state) const;
  /// The states of the parameter that the checkpoint has, sorted by name.
  std::vector<std::string> states_of(const std::string& parameter) const;
  /// Reads `numel` elements from `begin` on, in the dtype of dtype_of(). Throws UserError if an element is in
  /// no file, or damaged.
  void read(const std::string& parameter, const std::string& state, int64_t begin, int64_t numel,
            std::span<std::byte> into);
  int64_t bytes_read() const;

 private:
  struct Place {
    std::string file;
    StateRange range;
  };

  const std::vector<Place>* places_of(const std::string& parameter, const std::string& state) const;
  StateFileReader& reader_of(const std::string& file);

  FileSystem* files_;
  std::filesystem::path folder_;
  Manifest manifest_;
  std::map<std::pair<std::string, std::string>, std::vector<Place>> places_;  // sorted by `begin`
  std::map<std::string, std::unique_ptr<StateFileReader>> readers_;           // of files that are open
  int64_t bytes_before_ = 0;  // read by readers that were closed
};

}  // namespace zerorun
