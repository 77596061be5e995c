// Records in order the operators that compute the values of tensors without memory, and replays the operators
// that one storage needs. The tape identifies storages by number and holds none of their data. It holds the
// real tensors that operators read, and generator states (5 KB per random operator). Owned by
// DeferredRecorder; one thread at a time.
#pragma once

#include <ATen/core/Generator.h>
#include <ATen/core/Tensor.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/stack.h>

#include <optional>
#include <vector>

namespace zerorun {

using StorageId = size_t;

/// A tensor on a storage of the tape.
struct TapeTensor {
  StorageId storage = 0;
  at::ScalarType dtype = at::kFloat;
  std::vector<int64_t> sizes;
  std::vector<int64_t> strides;
  int64_t offset = 0;   // in elements
  bool covers = false;  // each byte of the storage belongs to exactly one element

  bool same_geometry(const TapeTensor& other) const;
};

/// A tensor of the tape, and its position among an operator's arguments or results.
struct TapeSlot {
  size_t index = 0;
  std::optional<size_t> item;  // index in the list at `index`; absent: the value is no list
  bool written = false;
  TapeTensor tensor;
};

/// A tensor with memory that an operator reads, and the tensor's version when the operator was recorded.
struct CapturedTensor {
  at::Tensor tensor;
  uint32_t version = 0;
};

struct GeneratorState {
  at::Generator generator;
  at::Tensor state;
};

struct TapeOperator {
  c10::OperatorHandle op;
  torch::jit::Stack arguments;  // with undefined tensors at the positions in `deferred`
  std::vector<TapeSlot> deferred;
  std::vector<CapturedTensor> captured;
  std::vector<TapeSlot> made;            // results on storages that this operator creates
  std::optional<GeneratorState> random;  // the state of its generator before it draws numbers
  at::ScalarType default_dtype = at::kFloat;
};

/// Reads the CPU generator's state under the generator's lock.
GeneratorState save_state(const at::Generator& generator);

/// Returns a tensor with `geometry` on `storage`, which must have memory.
at::Tensor tensor_on(const c10::Storage& storage, const TapeTensor& geometry);
/// Returns a storage with zero-filled memory of its own, which is freed with the storage.
c10::Storage allocate_storage(int64_t nbytes);

/// Returns a tensor of zeros on a new storage, with the sizes, strides and dtype of `tensor`.
at::Tensor allocate_like(const at::Tensor& tensor);

class OperatorTape {
 public:
  StorageId add_storage(int64_t nbytes);
  void add(TapeOperator entry);

  /// Runs the operators that storage `target` needs and writes its values to `memory`, which must have the
  /// same size. Restores the state of every generator afterwards. During a replay other threads must not draw
  /// from the tape's generators, but may replay other tapes.
  void replay(StorageId target, const c10::Storage& memory) const;

  int64_t nbytes(StorageId storage) const { return nbytes_[storage]; }
  const std::vector<TapeOperator>& operators() const { return operators_; }
  /// Returns the index of the last operator that writes the storage and has an index less than `before`.
  std::optional<size_t> last_writer(StorageId storage, size_t before) const;

 private:
  std::vector<int64_t> nbytes_;               // by StorageId
  std::vector<std::vector<size_t>> writers_;  // by StorageId; ascending
  std::vector<TapeOperator> operators_;
};

}  // namespace zerorun
