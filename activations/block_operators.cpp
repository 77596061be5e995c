#include "activations/block_operators.h"

#include <ATen/SequenceNumber.h>
#include <ATen/record_function.h>
#include <c10/core/ScalarTypeToTypeMeta.h>
#include <c10/util/Type.h>
#include <c10/util/hash.h>
#include <torch/csrc/autograd/function.h>
#include <torch/csrc/autograd/variable.h>

#include <algorithm>
#include <typeinfo>
#include <unordered_map>
#include <unordered_set>
#include <utility>

namespace zerorun {
namespace {

using torch::autograd::Node;

std::string name_of(std::type_index node) {
  const std::string name = c10::demangle(node.name());
  return name.substr(name.rfind(':') + 1);
}

bool is_cast(std::type_index node) {
  // By name, because LibTorch declares the class in a header of all its nodes.
  thread_local std::unordered_map<std::type_index, bool> known;
  const auto [found, is_new] = known.try_emplace(node, false);
  if (is_new) found->second = name_of(node) == "ToCopyBackward0";
  return found->second;
}

size_t hash_of_results(const Node& node) {
  size_t hash = node.num_inputs();
  for (uint32_t index = 0; index < node.num_inputs(); ++index) {
    const auto& result = node.input_metadata(index);
    hash = c10::hash_combine(hash, static_cast<size_t>(c10::typeMetaToScalarType(result.dtype())));
    if (result.is_nested_tensor()) continue;
    for (const c10::SymInt& size : result.shape_as_dim_vector())
      hash = c10::hash_combine(hash, static_cast<size_t>(size.maybe_as_int().value_or(-1)));
  }
  return hash;
}

std::string place(size_t index, size_t count) {
  return "operator " + std::to_string(index + 1) + " of " + std::to_string(count);
}

}  // namespace

uint64_t next_operator() {
  return at::sequence_number::peek();
}

std::vector<BlockOperator> operators_behind(const Tensors& outputs, uint64_t begin) {
  const uint64_t thread = at::RecordFunction::currentThreadId();
  std::vector<const Node*> found, waiting;
  std::unordered_set<const Node*> seen;
  const auto visit = [&](const Node* node) {
    // Gradients' ends have the largest number of all.
    const bool is_inside = node && node->thread_id() == thread && node->sequence_nr() >= begin &&
                           node->num_outputs() > 0 && seen.insert(node).second;
    if (is_inside) waiting.push_back(node);
  };
  for (const at::Tensor& output : outputs) {
    if (output.defined()) visit(output.grad_fn().get());
  }
  while (!waiting.empty()) {
    const Node* node = waiting.back();
    waiting.pop_back();
    if (!is_cast(typeid(*node))) found.push_back(node);
    for (const torch::autograd::Edge& edge : node->next_edges()) visit(edge.function.get());
  }
  std::ranges::sort(found, {}, [](const Node* node) { return node->sequence_nr(); });
  std::vector<BlockOperator> operators;
  for (const Node* node : found) operators.push_back({typeid(*node), hash_of_results(*node)});
  return operators;
}

std::string describe_difference(const std::vector<BlockOperator>& now,
                                const std::vector<BlockOperator>& before) {
  const auto [one, other] = std::ranges::mismatch(now, before);
  const auto index = static_cast<size_t>(one - now.begin());
  if (one == now.end() && other == before.end()) return "";
  if (one == now.end()) return place(index, before.size()) + ", " + name_of(other->node) + ", is missing";
  const std::string found = place(index, now.size()) + " is " + name_of(one->node);
  if (other == before.end()) return found + ", before there was none";
  if (one->node != other->node) return found + ", before " + name_of(other->node);
  return found + ", whose result has other sizes or another dtype than before";
}

}  // namespace zerorun
