#include "tensor_parallel/plan.h"

#include <utility>

#include "base/error.h"
#include "base/name_pattern.h"

namespace zerorun {
namespace {

constexpr std::pair<TensorStyle, const char*> kStyles[] = {
    {TensorStyle::colwise, "colwise"},
    {TensorStyle::rowwise, "rowwise"},
    {TensorStyle::embedding_rowwise, "embedding_rowwise"},
    {TensorStyle::colwise_gather_output, "colwise_gather_output"},
    {TensorStyle::replicated, "replicated"},
    {TensorStyle::replicated_with_grad_allreduce, "replicated_with_grad_allreduce"}};

std::string_view module_of(std::string_view parameter) {
  const size_t dot = parameter.rfind('.');
  return dot == std::string_view::npos ? std::string_view() : parameter.substr(0, dot);
}

int64_t split_dim(const TensorPlanEntry& entry, size_t dims) {
  if (dims == 1) return 0;
  const bool by_outputs = entry.style != TensorStyle::rowwise;
  return by_outputs == entry.cut.transposed ? 1 : 0;
}

// The ranges of each rank: of each block the rank's share of the units, as even as possible.
std::vector<std::vector<Range>> cut(int64_t block, int64_t blocks, int64_t unit, int ranks) {
  std::vector<std::vector<Range>> parts(static_cast<size_t>(ranks));
  const int64_t units = block / unit;
  for (int64_t rank = 0; rank < ranks; ++rank) {
    const int64_t begin = rank * units / ranks * unit;
    const int64_t end = (rank + 1) * units / ranks * unit;
    for (int64_t index = 0; index < blocks; ++index)
      parts[static_cast<size_t>(rank)].push_back({index * block + begin, end - begin});
  }
  return parts;
}

}  // namespace

const char* name_of(TensorStyle style) {
  for (const auto& [each, word] : kStyles) {
    if (each == style) return word;
  }
  throw InternalError("a tensor style without a name");
}

TensorStyle parse_tensor_style(std::string_view word) {
  std::string words;
  for (const auto& [style, each] : kStyles) {
    if (each == word) return style;
    words += (words.empty() ? "" : ", ") + std::string(each);
  }
  throw UserError("\"" + std::string(word) + "\" is no word of a tensor plan: expected one of " + words);
}

const TensorPlanEntry* find_entry(const TensorPlan& plan, const std::string& parameter) {
  for (const TensorPlanEntry& entry : plan) {
    if (matches_name(entry.pattern, parameter) || matches_name(entry.pattern, module_of(parameter)))
      return &entry;
  }
  return nullptr;
}

PlannedShare share_of(const TensorPlanEntry& entry, const std::string& name, std::span<const int64_t> sizes,
                      int ranks) {
  const TensorStyle style = entry.style;
  if (style == TensorStyle::replicated) return {};
  if (style == TensorStyle::replicated_with_grad_allreduce) return {.share = Share::summed};
  if (style == TensorStyle::rowwise && sizes.size() == 1) return {};  // a bias, added once to the sum
  const std::string what =
      "parameter " + name + ", which the tensor plan calls " + name_of(style) + " (" + entry.pattern + "),";
  if (sizes.empty() || sizes.size() > 2) {
    throw UserError(what + " has " + std::to_string(sizes.size()) +
                    " dimensions: only weights of two dimensions and their biases can be split");
  }
  if (entry.cut.unit < 1 || entry.cut.blocks < 1)
    throw UserError(what + " has a unit or a number of blocks below 1 in the plan");
  const int64_t dim = split_dim(entry, sizes.size());
  const int64_t whole = sizes[static_cast<size_t>(dim)];
  const auto [unit, blocks, transposed] = entry.cut;
  if (whole % blocks != 0 || whole / blocks % unit != 0) {
    throw UserError(what + " has size " + std::to_string(whole) + " along dimension " + std::to_string(dim) +
                    ", which is not " + std::to_string(blocks) + " block(s) of units of " +
                    std::to_string(unit) + ": change `blocks` or `unit` in the plan");
  }
  const int64_t units = whole / blocks / unit;
  if (units < ranks) {
    throw UserError(what + " has " + std::to_string(units) + " unit(s) of " + std::to_string(unit) +
                    " along dimension " + std::to_string(dim) + " for " + std::to_string(ranks) +
                    " tensor ranks, and each needs one: use fewer tensor ranks, or leave the module whole");
  }
  const bool gathers = style == TensorStyle::colwise_gather_output || style == TensorStyle::embedding_rowwise;
  return {
      .share = Share::split,
      .split = {
          .dim = dim, .whole = whole, .parts = cut(whole / blocks, blocks, unit, ranks), .gathers = gathers}};
}

}  // namespace zerorun
