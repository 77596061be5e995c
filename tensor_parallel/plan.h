// Which parameters are split among the ranks of a tensor group, and how: a table of name patterns and words,
// which are those of transformers' `tp_plan`. A plain value.
//
//   TensorPlan plan = {{"layers.*.attention.q", TensorStyle::colwise, {.unit = head_size}},
//                      {"layers.*.attention.o", TensorStyle::rowwise, {.unit = head_size}}};
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "zero/split.h"

namespace zerorun {

/// The word for a module. Its weight is (outputs, inputs) unless TensorCut::transposed.
enum class TensorStyle {
  colwise,                         // split along its outputs, as is its bias; so is the result
  rowwise,                         // split along its inputs, which are split already; results are summed
  embedding_rowwise,               // an embedding, split along the vocabulary; results are summed
  colwise_gather_output,           // colwise, and the result is gathered
  replicated,                      // whole on each rank, the same as no entry
  replicated_with_grad_allreduce,  // whole, but used on split values: gradients are summed over tensor ranks
};
const char* name_of(TensorStyle style);
/// Throws UserError for another word.
TensorStyle parse_tensor_style(std::string_view word);

/// Where the split dimension of a weight may be cut.
struct TensorCut {
  int64_t unit = 1;         // a multiple of this many indices stays together: a head, or a group of heads
  int64_t blocks = 1;       // the dimension is this many equal blocks, each of them split: fused projections
  bool transposed = false;  // the weight is (inputs, outputs)
};

struct TensorPlanEntry {
  /// The name of a module, whose own parameters the entry is for, or of a parameter. `*` stands for one part
  /// between dots.
  std::string pattern;
  TensorStyle style;
  TensorCut cut = {};
};
using TensorPlan = std::vector<TensorPlanEntry>;

/// The first entry that names the parameter; null if none does.
const TensorPlanEntry* find_entry(const TensorPlan& plan, const std::string& parameter);

/// What the entry makes of the parameter `name` of `sizes` among `ranks` tensor ranks. Throws UserError if it
/// cannot be split like that.
struct PlannedShare {
  Share share = Share::whole;
  Split split = {};  // if `share` is split
};
PlannedShare share_of(const TensorPlanEntry& entry, const std::string& name, std::span<const int64_t> sizes,
                      int ranks);

}  // namespace zerorun
