#include "zero/operator_tape.h"

#include <ATen/EmptyTensor.h>
#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/ops/empty.h>
#include <c10/core/DefaultDtype.h>

#include <algorithm>
#include <functional>
#include <iterator>
#include <mutex>
#include <set>
#include <string>
#include <unordered_map>
#include <utility>

#include "base/error.h"
#include "base/heap.h"
#include "device/zeroed_memory.h"
#include "zero/interception.h"
#include "zero/operator_stack.h"
#include "zero/operator_traits.h"

namespace zerorun {
namespace {

void set_state(at::Generator generator, const at::Tensor& state) {
  std::lock_guard lock(generator.mutex());
  generator.set_state(state);
}

// Sets the default dtype and the state of the operator's generator to what they were when the operator was
// recorded. The destructor restores the previous dtype and state.
class RecordedSurroundings {
 public:
  explicit RecordedSurroundings(const TapeOperator& entry) : default_dtype_(c10::get_default_dtype()) {
    if (entry.random) {
      current_ = save_state(entry.random->generator);
      set_state(entry.random->generator, entry.random->state);
    }
    use_default_dtype(c10::scalarTypeToTypeMeta(entry.default_dtype));
  }
  ~RecordedSurroundings() {
    use_default_dtype(default_dtype_);
    if (current_) set_state(current_->generator, current_->state);
  }
  RecordedSurroundings(const RecordedSurroundings&) = delete;
  RecordedSurroundings& operator=(const RecordedSurroundings&) = delete;

 private:
  static void use_default_dtype(caffe2::TypeMeta dtype) {
    if (c10::get_default_dtype() != dtype) c10::set_default_dtype(dtype);
  }

  caffe2::TypeMeta default_dtype_;
  std::optional<GeneratorState> current_;
};

// Whether the operator writes the slot's whole storage without reading it.
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
  // Selects the operators to run, from the last to the first. If an operator reads a storage, or writes only
  // part of it, the last earlier writer of that storage must run too.
  void choose_steps() {
    std::set<size_t, std::greater<>> open;
    auto need = [&](StorageId storage, size_t before) {
      if (const auto writer = tape_.last_writer(storage, before)) open.insert(*writer);
    };
    need(target_, tape_.operators().size());
    while (!open.empty()) {
      const size_t step = *open.begin();
      open.erase(open.begin());
      steps_.push_back(step);
      const TapeOperator& entry = tape_.operators()[step];
      for (const TapeSlot& slot : entry.made) last_use_.try_emplace(slot.tensor.storage, step);
      for (const TapeSlot& slot : entry.deferred) {
        last_use_.try_emplace(slot.tensor.storage, step);
        if (!overwrites(entry, slot)) need(slot.tensor.storage, step);
      }
    }
    std::reverse(steps_.begin(), steps_.end());
  }

  void run_step(size_t step, const TapeOperator& entry) {
    check_captured(entry);
    torch::jit::Stack stack = with_own_lists(entry.arguments, entry.arguments.size());
    for (const TapeSlot& slot : entry.deferred) {
      put_tensor(stack, slot.index, slot.item, tensor_on(memory_of(slot.tensor.storage), slot.tensor));
    }
    RecordedSurroundings surroundings(entry);
    if (const auto in_place = in_place_form(step, entry)) {
      const auto input = memory_.extract(entry.deferred.front().tensor.storage);
      in_place->callBoxed(&stack);
      stack = {tensor_on(input.mapped(), entry.made.front().tensor)};
    } else {
      entry.op.callBoxed(&stack);
    }
    for (const TapeSlot& slot : entry.made) keep(entry, slot.tensor, tensor_at(stack, slot.index, slot.item));
  }

  static void check_captured(const TapeOperator& entry) {
    for (const CapturedTensor& captured : entry.captured) {
      if (captured.tensor._version() == captured.version) continue;
      throw UserError("operator " + c10::toString(entry.op.operator_name()) +
                      ", recorded under zerorun::DeferredInit, reads a tensor that has been written to "
                      "since: its values are gone. Write to that tensor only after zerorun::initialize(), or "
                      "create it in the DeferredInit scope too");
    }
  }

  // Returns the operator's in-place form if nothing else needs its input. For example, x *= 0.02 gives the
  // same bits as x * 0.02 and needs no second tensor.
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
        !entry.made[0].tensor.covers || storage == target_ || last_use_.at(storage) != step ||
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
          " returns a result with another memory layout than announced under zerorun::DeferredInit: later "
          "values could differ from plain construction. Build this part of the model outside the scope");
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
  return zeroed_memory(nbytes, at::kByte).storage();
}

at::Tensor allocate_like(const at::Tensor& tensor) {
  const size_t nbytes =
      at::detail::computeStorageNbytes(tensor.sizes(), tensor.strides(), tensor.element_size());
  return tensor_on(allocate_storage(static_cast<int64_t>(nbytes)), {.storage = 0,
                                                                    .dtype = tensor.scalar_type(),
                                                                    .sizes = tensor.sizes().vec(),
                                                                    .strides = tensor.strides().vec(),
                                                                    .offset = 0,
                                                                    .covers = false});
}

StorageId OperatorTape::add_storage(int64_t nbytes) {
  nbytes_.push_back(nbytes);
  writers_.emplace_back();
  return nbytes_.size() - 1;
}

void OperatorTape::add(TapeOperator entry) {
  auto note = [&](const TapeSlot& slot) {
    std::vector<size_t>& writers = writers_[slot.tensor.storage];
    if (slot.written && (writers.empty() || writers.back() != operators_.size())) {
      writers.push_back(operators_.size());
    }
  };
  std::for_each(entry.made.begin(), entry.made.end(), note);
  std::for_each(entry.deferred.begin(), entry.deferred.end(), note);
  operators_.push_back(std::move(entry));
}

std::optional<size_t> OperatorTape::last_writer(StorageId storage, size_t before) const {
  const std::vector<size_t>& writers = writers_[storage];
  const auto after = std::lower_bound(writers.begin(), writers.end(), before);
  return after == writers.begin() ? std::nullopt : std::optional(*std::prev(after));
}

void OperatorTape::replay(StorageId target, const c10::Storage& memory) const {
  // Ranks may be threads of one process. They share its default generator, so only one replays at a time.
  static std::mutex one_at_a_time;
  std::lock_guard lock(one_at_a_time);
  InterceptionPause pause;
  at::AutoDispatchBelowADInplaceOrView below_autograd;
  Replay(*this, target, memory).run();
  if (nbytes(target) >= kLargeBlock) return_freed_memory();  // the memory of intermediate results
}

}  // namespace zerorun
