// A DeepSpeed checkpoint as its readers put it together: the files that are open, the parameters found so
// far. Used by one thread.
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

namespace zerorun {

/// Parameters that the optimizer's states list together (at stage 3 a part of a parameter group), as
/// `param_shapes` names them.
struct ShapeGroup {
  std::vector<std::pair<std::string, std::vector<int64_t>>> parameters;
  std::string place;
};

struct DeepSpeedContents {
  FileSystem* files = nullptr;
  DeepSpeedFolder folder;
  std::vector<TorchFile*> models;  // at stage 3 by rank
  std::vector<ShapeGroup> groups;
  DeepSpeedCheckpoint result;

  TorchFile* open(const std::filesystem::path& path);
  /// What the file of model states has; rank 0's at stage 3.
  PickledField model() const;
  RestartValues& numbers() { return result.facts.numbers; }
  /// Keeps a note of what ZeroRun does not take over.
  void leave_out(const std::string& what) { result.facts.left_out.push_back(what); }
  /// The state that has the weights in fp32: "value", or "master" beside 16-bit weights.
  const char* state_of_weights() const { return result.facts.precision == "fp32" ? "value" : "master"; }

  /// Throws UserError if there is one of that name.
  SourceParameter& add_parameter(const std::string& name, const std::vector<int64_t>& shape,
                                 const std::string& place);
};

PickledField root_of(const TorchFile& file);
/// Throws UserError if the value is no tensor.
SourceTensorPtr tensor_of(TorchFile* file, const PickledField& field);
/// Adds a state that is all of a tensor. Throws UserError if the tensor has another shape than the parameter,
/// or another order in memory.
void add_state(SourceParameter& parameter, const std::string& state, const SourceTensorPtr& source,
               const std::string& place);
/// An optimizer's step: a number, or a tensor of one float.
int64_t step_of(TorchFile* file, const PickledField& field);
/// Throws UserError for a shape of more than 2^63 elements.
int64_t numel_of(const std::vector<int64_t>& shape, const std::string& place);

/// A dict whose keys are integers.
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

/// Stage 0: the file of model states has everything.
void read_stage0(DeepSpeedContents& contents);
/// Stages 1 to 3: the file of each rank's optimizer has its partitions.
void read_partitions(DeepSpeedContents& contents);
/// A universal checkpoint: each state of each parameter has a file.
void read_universal(DeepSpeedContents& contents);

}  // namespace zerorun
