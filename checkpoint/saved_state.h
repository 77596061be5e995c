// Reads elements of one state of one parameter from all files of a checkpoint that have them. The run that
// reads may shard states differently from the run that wrote them. Used by one thread.
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

namespace zerorun::checkpoint {

class SavedState {
 public:
  /// Opens a tag's folder and reads its manifest. `files` must outlive this object. Throws UserError naming
  /// the folder.
  SavedState(FileSystem& files, std::filesystem::path folder);

  const Manifest& manifest() const { return manifest_; }
  /// Returns the dtype of the state in the checkpoint; empty if the checkpoint does not have the state.
  std::string dtype_of(const std::string& parameter, const std::string& state) const;
  /// Returns the names of the parameter's states in the checkpoint, sorted.
  std::vector<std::string> states_of(const std::string& parameter) const;
  /// Returns the parts of which the checkpoint has the state (StateRange::part), sorted.
  std::vector<int> parts_of(const std::string& parameter, const std::string& state) const;
  /// Reads `numel` elements of a part, starting at element `begin`, in the dtype that dtype_of() returns.
  /// Throws UserError if an element is damaged or is in no file.
  void read(const std::string& parameter, const std::string& state, int64_t begin, int64_t numel,
            std::span<std::byte> into, int part = kWhole);
  int64_t bytes_read() const;

 private:
  struct Place {
    std::string file;
    StateRange range;
  };

  using Places = std::map<int, std::vector<Place>>;  // by part; sorted by `begin`

  const Places* places_of(const std::string& parameter, const std::string& state) const;
  StateFileReader& reader_of(const std::string& file);

  FileSystem* files_;
  std::filesystem::path folder_;
  Manifest manifest_;
  std::map<std::pair<std::string, std::string>, Places> places_;     // by parameter and state
  std::map<std::string, std::unique_ptr<StateFileReader>> readers_;  // readers of the open files
  int64_t bytes_before_ = 0;  // bytes read by readers that have been closed
};

}  // namespace zerorun::checkpoint
