#include "activations/marked_modules.h"

#include <torch/nn/modules/container/sequential.h>

#include <mutex>
#include <shared_mutex>
#include <string>
#include <unordered_map>
#include <utility>

#include "activations/recomputable.h"
#include "base/error.h"

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

// Runs a layer of a Sequential as a block.
class BlockLayer : public AnyModulePlaceholder {
 public:
  explicit BlockLayer(AnyModule layer)
      : AnyModulePlaceholder(typeid(BlockLayer)), layer_(std::move(layer)), module_(layer_.ptr()) {}

  AnyValue forward(std::vector<AnyValue>&& arguments) override {
    AnyModulePlaceholder& content = *(layer_.*content_of_any_module());
    const std::shared_ptr<const Block> block = find_block(*module_);
    at::Tensor* input = arguments.size() == 1 ? arguments[0].try_get<at::Tensor>() : nullptr;
    if (!block || !input || !is_recomputed(*block, {*input})) {
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
  std::unique_ptr<AnyModulePlaceholder> copy() const override { return std::make_unique<BlockLayer>(layer_); }
  std::unique_ptr<AnyModulePlaceholder> clone_module(std::optional<at::Device> device) const override {
    return std::make_unique<BlockLayer>(layer_.clone(device));
  }

 private:
  AnyModule layer_;
  std::shared_ptr<torch::nn::Module> module_;
};

}  // namespace

std::shared_ptr<const Block> find_block(const torch::nn::Module& module) {
  Registry& all = registry();
  const std::shared_lock lock(all.mutex);
  const auto found = all.blocks.find(&module);
  return found == all.blocks.end() ? nullptr : found->second;
}

MarkedModules::MarkedModules(torch::nn::Module& model, std::shared_ptr<Recomputation> recomputation)
    : recomputation_(std::move(recomputation)) {
  replace_layers(model, nullptr);
  Registry& all = registry();
  const std::unique_lock lock(all.mutex);
  for (const auto& item : model.named_modules("", /*include_self=*/false)) {
    const std::shared_ptr<torch::nn::Module>& module = item.value();
    replace_layers(*module, module);
    modules_.push_back(module.get());
    all.blocks[module.get()] = std::make_shared<const Block>(
        Block{.name = item.key(), .recomputation = recomputation_, .parameters = module->parameters()});
  }
}

MarkedModules::~MarkedModules() {
  {
    Registry& all = registry();
    const std::unique_lock lock(all.mutex);
    for (const torch::nn::Module* module : modules_) {
      const auto found = all.blocks.find(module);
      if (found != all.blocks.end() && found->second->recomputation == recomputation_)
        all.blocks.erase(found);
    }
  }
  for (Replaced& replaced : replaced_) *replaced.layer = std::move(replaced.original);
}

void MarkedModules::replace_layers(torch::nn::Module& module,
                                   const std::shared_ptr<torch::nn::Module>& owner) {
  auto* sequential = dynamic_cast<torch::nn::SequentialImpl*>(&module);
  if (!sequential) return;
  for (AnyModule& layer : *sequential) {
    replaced_.push_back({owner, &layer, std::move(layer)});
    layer.*content_of_any_module() = std::make_unique<BlockLayer>(replaced_.back().original);
  }
}

}  // namespace zerorun
