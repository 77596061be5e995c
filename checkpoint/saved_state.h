// Reads elements of states of parameters from all files of a checkpoint that have them. The run that reads
// may shard states, and divide parameters among tensor ranks, differently from the run that wrote them. Used
// by one thread.
#pragma once

#include <cstddef>
#include <filesystem>
#include <functional>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "checkpoint/manifest.h"
#include "checkpoint/part_map.h"

namespace zerorun::checkpoint {

/// Elements of one state that a rank has of one parameter.
struct WantedElements {
  std::string parameter;  // its name in the checkpoint, as that of the state
  std::string state;
  SavedParameter own;  // as this rank has it
  int part = kWhole;   // what `begin` counts in: the rank's part of `own`
  int64_t begin = 0;
  int64_t numel = 0;
  /// Puts elements to their places. `from` has them in the dtype of the state, the first one at its begin and
  /// the others as the rows' from_strides say; it is valid during the call.
  std::function<void(const ElementRows& rows, std::span<const std::byte> from)> put = {};
};

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
  /// Reads what a rank wants, from one file after the other, each from front to back: each block once, if it
  /// has any of these elements. Takes the memory of one block, whatever the sizes of the parameters. Throws
  /// UserError if a block is damaged.
  void read(std::span<const WantedElements> wanted);
  /// Says of each state what the manifest lacks: elements that are in no file, or in two. Empty if it is
  /// whole.
  std::vector<std::string> faults() const;

 private:
  struct Place {
    std::string file;
    StateRange range;
  };

  using Places = std::map<int, std::vector<Place>>;  // by part; sorted by `begin`

  // Elements in one block of a file, for one of those who want some of its range.
  struct Step;

  const Places* places_of(const std::string& parameter, const std::string& state) const;
  std::vector<Step> steps_for(std::span<const WantedElements> wanted) const;
  StateFileReader& reader_of(const std::string& file);

  FileSystem* files_;
  std::filesystem::path folder_;
  Manifest manifest_;
  std::map<std::pair<std::string, std::string>, Places> places_;     // by parameter and state
  std::map<std::string, std::unique_ptr<StateFileReader>> readers_;  // readers of the open files
};

}  // namespace zerorun::checkpoint
