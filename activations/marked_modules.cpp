#include "activations/marked_modules.h"

#include <torch/nn/modules/container/any.h>

#include <algorithm>
#include <mutex>
#include <shared_mutex>
#include <string>
#include <unordered_map>
#include <unordered_set>
#include <utility>

#include "activations/recomputable.h"
#include "base/error.h"
#include "base/name_pattern.h"

namespace zerorun {
namespace {

using torch::nn::AnyModule;
using torch::nn::AnyModulePlaceholder;
using torch::nn::AnyValue;

struct Registry {
  std::shared_mutex mutex;
  std::unordered_map<const torch::nn::Module*, std::shared_ptr<const Block>> blocks;
};

// Never destroyed: engines may live until the process ends.
Registry& registry() {
  static auto& all = *new Registry;
  return all;
}

// Gives access to AnyModule's private content, which no public function sets to another type than that of a
// module with a static type. An explicit instantiation of a template may name a private member.
template <std::unique_ptr<AnyModulePlaceholder> AnyModule::*Member>
struct Reveal {
  friend std::unique_ptr<AnyModulePlaceholder> AnyModule::*content_of_any_module() { return Member; }
};
std::unique_ptr<AnyModulePlaceholder> AnyModule::*content_of_any_module();
template struct Reveal<&AnyModule::content_>;

// Runs a layer of a Sequential as a block. Copies and clones are of the layer alone: no engine restores them.
class BlockLayer : public AnyModulePlaceholder {
 public:
  explicit BlockLayer(AnyModule layer)
      : AnyModulePlaceholder(typeid(BlockLayer)), layer_(std::move(layer)), module_(layer_.ptr()) {}

  AnyValue forward(std::vector<AnyValue>&& arguments) override {
    AnyModulePlaceholder& content = *(layer_.*content_of_any_module());
    const std::shared_ptr<const Block> block = find_block(*module_);
    at::Tensor* input = arguments.size() == 1 ? arguments[0].try_get<at::Tensor>() : nullptr;
    if (!block || !input || block->parameters.empty() || !is_recomputed(*block, {*input})) {
      const InsideBlock inside;
      return content.forward(std::move(arguments));
    }
    const BlockFunction run = [layer = layer_, name = block->name](const Tensors& inputs) mutable {
      AnyValue result = layer.any_forward(at::Tensor(inputs[0]));
      if (at::Tensor* tensor = result.try_get<at::Tensor>()) return Tensors{std::move(*tensor)};
      throw UserError("layer " + name +
                      " of a torch::nn::Sequential returns something else than a tensor, so it cannot be "
                      "recomputed: name the blocks to recompute in zerorun.recompute.patterns");
    };
    return AnyValue(run_block(block, run, {*input})[0]);
  }

  std::shared_ptr<torch::nn::Module> ptr() override { return module_; }
  std::unique_ptr<AnyModulePlaceholder> copy() const override {
    return (layer_.*content_of_any_module())->copy();
  }
  std::unique_ptr<AnyModulePlaceholder> clone_module(std::optional<at::Device> device) const override {
    return (layer_.*content_of_any_module())->clone_module(device);
  }
  AnyModule take() { return std::move(layer_); }

 private:
  AnyModule layer_;
  std::shared_ptr<torch::nn::Module> module_;
};

BlockLayer* block_of(AnyModule& layer) {
  return dynamic_cast<BlockLayer*>((layer.*content_of_any_module()).get());
}

void wrap(AnyModule& layer) {
  if (block_of(layer)) return;
  AnyModule inner = std::move(layer);
  layer.*content_of_any_module() = std::make_unique<BlockLayer>(std::move(inner));
}

// Unless another engine has it as a block.
void unwrap(AnyModule& layer) {
  BlockLayer* block = block_of(layer);
  if (!block || find_block(*block->ptr())) return;
  AnyModule inner = block->take();
  layer = std::move(inner);
}

}  // namespace

std::shared_ptr<const Block> find_block(const torch::nn::Module& module) {
  Registry& all = registry();
  const std::shared_lock lock(all.mutex);
  const auto found = all.blocks.find(&module);
  return found == all.blocks.end() ? nullptr : found->second;
}

MarkedModules::MarkedModules(torch::nn::Module& model, std::shared_ptr<Recomputation> recomputation)
    : recomputation_(std::move(recomputation)), model_(model.weak_from_this().lock()) {
  const auto note_sequential = [&](torch::nn::Module& module) {
    if (auto* sequential = dynamic_cast<torch::nn::SequentialImpl*>(&module))
      sequentials_.push_back(sequential);
  };
  note_sequential(model);
  Registry& all = registry();
  const std::unique_lock lock(all.mutex);
  std::unordered_set<const torch::nn::Module*> seen;
  for (const auto& item : model.named_modules("", /*include_self=*/false)) {
    const std::shared_ptr<torch::nn::Module>& module = item.value();
    if (!seen.insert(module.get()).second) continue;  // of a module under two names the first name counts
    note_sequential(*module);
    modules_.push_back(module);
    all.blocks[module.get()] = std::make_shared<const Block>(
        Block{.name = item.key(), .recomputation = recomputation_, .parameters = module->parameters()});
  }
  for (torch::nn::SequentialImpl* sequential : sequentials_) std::ranges::for_each(*sequential, wrap);
}

MarkedModules::~MarkedModules() {
  {
    Registry& all = registry();
    const std::unique_lock lock(all.mutex);
    for (const auto& module : modules_) {
      const auto found = all.blocks.find(module.get());
      if (found != all.blocks.end() && found->second->recomputation == recomputation_)
        all.blocks.erase(found);
    }
  }
  // The program may have added layers meanwhile.
  for (torch::nn::SequentialImpl* sequential : sequentials_) std::ranges::for_each(*sequential, unwrap);
}

bool MarkedModules::has(const std::string& pattern) const {
  return std::ranges::any_of(modules_, [&](const auto& module) {
    const std::shared_ptr<const Block> block = find_block(*module);
    return block && matches_name(pattern, block->name);
  });
}

}  // namespace zerorun
