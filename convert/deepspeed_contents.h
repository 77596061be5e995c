// The data that is collected while a DeepSpeed checkpoint is read: open files and parameters. Used by one
// thread.
#pragma once

#include <cstdint>
#include <filesystem>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "convert/deepspeed_checkpoint.h"
#include "convert/deepspeed_folder.h"
#include "convert/pickle_fields.h"

namespace zerorun::convert {

/// One entry of `param_shapes`: parameters whose optimizer states are stored together. At stage 3 these may
/// be only a part of a parameter group.
struct ShapeGroup {
  std::vector<std::pair<std::string, std::vector<int64_t>>> parameters;
  std::string place;
};

struct DeepSpeedContents {
  checkpoint::FileSystem* files = nullptr;
  DeepSpeedFolder folder;
  std::vector<TorchFile*> models;  // files with model states; at stage 3 one per rank
  std::vector<ShapeGroup> groups;
  DeepSpeedCheckpoint result;

  TorchFile* open(const std::filesystem::path& path);
  /// The contents of the file with model states; at stage 3, of rank 0's file.
  PickledField model() const;
  checkpoint::RestartValues& numbers() { return result.facts.numbers; }
  /// Records, for the user, something that ZeroRun does not import.
  void leave_out(const std::string& what) { result.facts.left_out.push_back(what); }
  /// The name of the state with the fp32 weights: "master" if training is in 16 bits, else "value".
  const char* state_of_weights() const { return result.facts.precision == "fp32" ? "value" : "master"; }

  /// Throws UserError if a parameter of this name exists already.
  SourceParameter& add_parameter(const std::string& name, const std::vector<int64_t>& shape,
                                 const std::string& place);
};

PickledField root_of(const TorchFile& file);
/// Throws UserError if the value is not a tensor.
SourceTensorPtr tensor_of(TorchFile* file, const PickledField& field);
/// Adds a state that consists of one whole tensor. Throws UserError if the tensor's shape or memory order
/// differs from the parameter's.
void add_state(SourceParameter& parameter, const std::string& state, const SourceTensorPtr& source,
               const std::string& place);
/// Returns the value of an optimizer's step, which is stored as a number or as a tensor with one float.
int64_t step_of(TorchFile* file, const PickledField& field);
/// Returns the ZeRO stage in a dict of DeepSpeed's optimizer. Throws UserError unless it is 1, 2 or 3.
int zero_stage_of(const PickledField& facts);
/// Returns the number of elements. Throws UserError if it does not fit into int64_t.
int64_t numel_of(const std::vector<int64_t>& shape, const std::string& place);

/// Access to a dict whose keys are integers.
class NumberedFields {
 public:
  explicit NumberedFields(const PickledField& dict);
  /// Throws UserError if there is no such key.
  const PickledField& at(size_t key) const;
  size_t size() const { return fields_.size(); }
  const std::string& place() const { return place_; }

 private:
  std::string place_;
  std::map<int64_t, PickledField> fields_;
};

/// Stage 0: the file with model states has everything.
void read_stage0(DeepSpeedContents& contents);
/// Stages 1 to 3: each rank's optimizer file has that rank's partitions.
void read_partitions(DeepSpeedContents& contents);
/// Universal checkpoints: each state of each parameter has a file of its own.
void read_universal(DeepSpeedContents& contents);

}  // namespace zerorun::convert
