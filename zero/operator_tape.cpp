#include "zero/operator_tape.h"

#include <ATen/Context.h>
#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/ops/empty.h>
#include <c10/core/CPUAllocator.h>
#include <c10/core/DefaultDtype.h>

#include <algorithm>
#include <set>
#include <string>
#include <unordered_map>
#include <utility>

#include "base/error.h"
#include "zero/interception.h"

namespace zerorun {
namespace {

void set_state(at::Generator generator, const at::Tensor& state) {
  std::lock_guard lock(generator.mutex());
  generator.set_state(state);
}

// While it lives, the operator's surroundings are as they were when it was recorded.
class RecordedSurroundings {
 public:
  explicit RecordedSurroundings(const TapeOperator& entry) : default_dtype_(c10::get_default_dtype()) {
    if (entry.random) {
      current_ = save_state(entry.random->generator);
      set_state(entry.random->generator, entry.random->state);
    }
    c10::set_default_dtype(c10::scalarTypeToTypeMeta(entry.default_dtype));
  }
  ~RecordedSurroundings() {
    c10::set_default_dtype(default_dtype_);
    if (current_) set_state(current_->generator, current_->state);
  }
  RecordedSurroundings(const RecordedSurroundings&) = delete;
  RecordedSurroundings& operator=(const RecordedSurroundings&) = delete;

 private:
  caffe2::TypeMeta default_dtype_;
  std::optional<GeneratorState> current_;
};

// The operator defines the whole storage of the slot without looking at what was there.
bool overwrites(const TapeOperator& entry, const TapeSlot& slot) {
  if (!slot.written || slot.index != 0 || slot.item || !slot.tensor.covers) return false;
  const std::string& name = entry.op.operator_name().name;
  return name == "aten::fill_" || name == "aten::zero_" || name == "aten::copy_" || is_random_fill(entry.op);
}

class Replay {
 public:
  Replay(const OperatorTape& tape, StorageId target, const c10::Storage& memory)
      : tape_(tape), target_(target), memory_{{target, memory}} {
    choose_steps();
  }

  void run() {
    for (size_t step : steps_) {
      const TapeOperator& entry = tape_.operators()[step];
      if (!only_allocates(entry.op)) run_step(step, entry);
      std::erase_if(memory_, [&](const auto& item) {
        return item.first != target_ && last_use_.at(item.first) <= step;
      });
    }
  }

 private:
  // Backwards from the end: an operator is needed if it writes a storage that a later one, or the result,
  // needs.
  void choose_steps() {
    std::set<StorageId> needed{target_};
    for (size_t step = tape_.operators().size(); step-- > 0;) {
      const TapeOperator& entry = tape_.operators()[step];
      auto writes_needed = [&](const TapeSlot& slot) {
        return slot.written && needed.contains(slot.tensor.storage);
      };
      if (std::none_of(entry.made.begin(), entry.made.end(), writes_needed) &&
          std::none_of(entry.deferred.begin(), entry.deferred.end(), writes_needed)) {
        continue;
      }
      steps_.push_back(step);
      for (const TapeSlot& slot : entry.made) {
        last_use_.try_emplace(slot.tensor.storage, step);
        needed.erase(slot.tensor.storage);
      }
      for (const TapeSlot& slot : entry.deferred) {
        last_use_.try_emplace(slot.tensor.storage, step);
        if (overwrites(entry, slot)) needed.erase(slot.tensor.storage);
      }
      for (const TapeSlot& slot : entry.deferred) {
        if (!overwrites(entry, slot)) needed.insert(slot.tensor.storage);
      }
    }
    std::reverse(steps_.begin(), steps_.end());
  }

  void run_step(size_t step, const TapeOperator& entry) {
    check_captured(entry);
    torch::jit::Stack stack = entry.arguments;
    std::set<size_t> copied;  // lists: the tape's own must keep its gaps
    for (const TapeSlot& slot : entry.deferred) {
      at::Tensor tensor = tensor_on(memory_of(slot.tensor.storage), slot.tensor);
      if (!slot.item) {
        stack[slot.index] = std::move(tensor);
        continue;
      }
      if (copied.insert(slot.index).second) stack[slot.index] = stack[slot.index].toList().copy();
      stack[slot.index].toList().set(*slot.item, std::move(tensor));
    }
    RecordedSurroundings surroundings(entry);
    if (const auto in_place = in_place_form(step, entry)) {
      in_place->callBoxed(&stack);
      memory_.emplace(entry.made.front().tensor.storage, memory_.at(entry.deferred.front().tensor.storage));
      memory_.erase(entry.deferred.front().tensor.storage);
      stack = {tensor_on(memory_.at(entry.made.front().tensor.storage), entry.made.front().tensor)};
    } else {
      entry.op.callBoxed(&stack);
    }
    for (const TapeSlot& slot : entry.made) {
      const c10::IValue& value = stack[slot.index];
      keep(entry, slot.tensor, slot.item ? value.toListRef()[*slot.item].toTensor() : value.toTensor());
    }
  }

  static void check_captured(const TapeOperator& entry) {
    for (const CapturedTensor& captured : entry.captured) {
      if (captured.tensor._version() == captured.version) continue;
      throw UserError(
          "operator " + c10::toString(entry.op.operator_name()) +
          ", recorded under zerorun::DeferredInit, reads a tensor that has been written since: its values "
          "are gone. Write to that tensor only after zerorun::initialize(), or make it under the "
          "DeferredInit scope too");
    }
  }

  // x * 0.02 where nothing else needs x: x *= 0.02 gives the same bits and saves a tensor of memory.
  std::optional<c10::OperatorHandle> in_place_form(size_t step, const TapeOperator& entry) const {
    if (entry.made.size() != 1 || entry.made[0].item || entry.op.schema().returns().size() != 1 ||
        entry.deferred.empty()) {
      return {};
    }
    const TapeSlot& input = entry.deferred.front();
    const StorageId storage = input.tensor.storage;
    const auto uses = std::count_if(entry.deferred.begin(), entry.deferred.end(),
                                    [&](const TapeSlot& slot) { return slot.tensor.storage == storage; });
    if (input.index != 0 || input.item || input.written || uses != 1 || !input.tensor.covers ||
        storage == target_ || last_use_.at(storage) != step ||
        !input.tensor.same_geometry(entry.made[0].tensor)) {
      return {};
    }
    c10::OperatorName name = entry.op.operator_name();
    name.name += "_";
    const auto found = c10::Dispatcher::singleton().findSchema(name);
    if (!found) return {};
    const auto& arguments = entry.op.schema().arguments();
    const auto& others = found->schema().arguments();
    const bool alike = std::equal(arguments.begin(), arguments.end(), others.begin(), others.end(),
                                  [](const c10::Argument& a, const c10::Argument& b) {
                                    return a.name() == b.name() && *a.type() == *b.type();
                                  });
    return alike ? found : std::nullopt;
  }

  const c10::Storage& memory_of(StorageId storage) {
    auto found = memory_.find(storage);
    if (found == memory_.end()) {
      found = memory_.emplace(storage, allocate_storage(tape_.nbytes(storage))).first;
    }
    return found->second;
  }

  void keep(const TapeOperator& entry, const TapeTensor& expected, const at::Tensor& result) {
    const bool alike = result.sizes() == at::IntArrayRef(expected.sizes) &&
                       result.strides() == at::IntArrayRef(expected.strides) &&
                       result.storage_offset() == expected.offset && result.scalar_type() == expected.dtype;
    if (!alike) {
      throw UserError(
          "operator " + c10::toString(entry.op.operator_name()) +
          " lays its result out in memory otherwise than it had foretold under zerorun::DeferredInit: "
          "what follows could differ from plain construction. Build this part of the model outside the "
          "scope");
    }
    if (memory_.emplace(expected.storage, result.storage()).second) return;
    at::Tensor place = tensor_on(memory_.at(expected.storage), expected);
    if (!place.is_alias_of(result)) place.copy_(result);
  }

  const OperatorTape& tape_;
  StorageId target_;
  std::unordered_map<StorageId, c10::Storage> memory_;
  std::unordered_map<StorageId, size_t> last_use_;
  std::vector<size_t> steps_;
};

}  // namespace

bool TapeTensor::same_geometry(const TapeTensor& other) const {
  return dtype == other.dtype && sizes == other.sizes && strides == other.strides && offset == other.offset;
}

bool is_random(const c10::OperatorHandle& op) {
  const auto& arguments = op.schema().arguments();
  return op.hasTag(at::Tag::nondeterministic_seeded) ||
         std::any_of(arguments.begin(), arguments.end(),
                     [](const c10::Argument& argument) { return argument.name() == "generator"; });
}

bool is_random_fill(const c10::OperatorHandle& op) {
  const c10::OperatorName& name = op.operator_name();
  static constexpr std::string_view names[] = {"aten::uniform_",     "aten::normal_", "aten::random_",
                                               "aten::exponential_", "aten::cauchy_", "aten::log_normal_",
                                               "aten::geometric_"};
  return std::find(std::begin(names), std::end(names), name.name) != std::end(names) ||
         (name.name == "aten::bernoulli_" && name.overload_name == "float");
}

bool only_allocates(const c10::OperatorHandle& op) {
  const std::string& name = op.operator_name().name;
  return name == "aten::empty" || name == "aten::empty_strided";
}

GeneratorState save_state(const at::Generator& generator) {
  at::Generator handle = generator;
  std::lock_guard lock(handle.mutex());
  return {handle, handle.get_state()};
}

at::Tensor tensor_on(const c10::Storage& storage, const TapeTensor& geometry) {
  return at::empty({0}, at::TensorOptions().dtype(geometry.dtype))
      .set_(storage, geometry.offset, geometry.sizes, geometry.strides);
}

c10::Storage allocate_storage(int64_t nbytes) {
  return c10::Storage(c10::Storage::use_byte_size_t(), nbytes, c10::GetCPUAllocator(), /*resizable=*/false);
}

StorageId OperatorTape::add_storage(int64_t nbytes) {
  nbytes_.push_back(nbytes);
  return nbytes_.size() - 1;
}

void OperatorTape::replay(StorageId target, const c10::Storage& memory) const {
  InterceptionPause pause;
  at::AutoDispatchBelowADInplaceOrView below_autograd;
  Replay(*this, target, memory).run();
}

}  // namespace zerorun
