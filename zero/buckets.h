// A model's parameters, moved into buckets: a bucket is one storage, parameters are views into it. Owned by
// the engine, which outlives no parameter's need of it: the views keep the storages alive. Used by the rank's
// own thread.
#pragma once

#include <ATen/core/Tensor.h>

#include <optional>
#include <string>
#include <vector>

#include "comm/communicator.h"
#include "zero/layout.h"

namespace zerorun {

struct NamedParameter {
  std::string name;
  at::Tensor tensor;  // the user's leaf
  int group;
};

class Buckets {
 public:
  /// Moves `parameters` (float32, CPU, dense) into buckets as `layout` says; values and leaves stay the same.
  Buckets(std::vector<NamedParameter> parameters, Layout layout, Communicator& communicator);

  int count() const { return static_cast<int>(flats_.size()); }
  const BucketLayout& layout(int bucket) const { return layout_.buckets[bucket]; }
  /// "bucket 3 (transformer.h.1.mlp.c_fc.weight and 2 more)"
  const std::string& label(int bucket) const { return labels_[bucket]; }
  /// All values of the bucket, 1-D; slice r belongs to rank r.
  const at::Tensor& flat(int bucket) const { return flats_[bucket]; }
  /// `rank`'s slice of a tensor laid out like this bucket.
  at::Tensor slice(int bucket, const at::Tensor& flat, int rank) const;

  const std::vector<NamedParameter>& parameters() const { return parameters_; }
  int bucket_of(int parameter) const { return layout_.placements[parameter].bucket; }
  /// The parameter's place in `flat`, a tensor laid out like its bucket: same sizes and strides as the
  /// parameter.
  at::Tensor view(int parameter, const at::Tensor& flat) const;
  /// Zeroes the alignment and padding between the parameters of `flat`, a tensor laid out like the bucket.
  void clear_padding(int bucket, at::Tensor& flat) const;

  /// Whether the parameter still lives in its bucket (Module::to, set_data and the like move it out).
  bool in_place(int parameter) const;
  /// Tells autograd that the values have changed: backward over a graph recorded before now fails, as it
  /// must.
  void bump_versions() const;

  int64_t numel() const;  // of the parameters, without padding
  int64_t bytes() const;  // of the storages

 private:
  // As they were when the parameter moved in: the user's tensor may be given others.
  struct Shape {
    std::vector<int64_t> sizes;
    std::vector<int64_t> strides;
    int64_t numel;
  };

  std::vector<NamedParameter> parameters_;
  std::vector<Shape> shapes_;  // one a parameter
  Layout layout_;
  std::vector<at::Tensor> flats_;
  std::vector<std::string> labels_;
};

}  // namespace zerorun
