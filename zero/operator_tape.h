// The recorded operators that compute the values of deferred tensors, in order, and the replay of those that
// one storage needs. The tape knows storages by number and holds none of their data, only the real tensors
// that operators read and generator states (5 KB per random operator). Owned by the recorder of a build
// scope; one thread at a time.
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
  bool covers = false;  // each byte of the storage belongs to one element

  bool same_geometry(const TapeTensor& other) const;
};

/// Where the arguments or results of an operator hold a tensor of the tape.
struct TapeSlot {
  size_t index = 0;
  std::optional<size_t> item;  // position in the list at `index`; absent: the value itself
  bool written = false;
  TapeTensor tensor;
};

/// A tensor with memory that an operator reads, and its version at that time.
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
  torch::jit::Stack arguments;  // None in the places that `deferred` lists
  std::vector<TapeSlot> deferred;
  std::vector<CapturedTensor> captured;
  std::vector<TapeSlot> made;            // results on storages that this operator creates
  std::optional<GeneratorState> random;  // the generator that the operator draws from
  at::ScalarType default_dtype = at::kFloat;
};

/// The CPU generator's state; set_state's inverse, under the generator's lock.
GeneratorState save_state(const at::Generator& generator);

/// A tensor with memory on the storage.
at::Tensor tensor_on(const c10::Storage& storage, const TapeTensor& geometry);
/// A storage with its own memory, which returns to the system when the storage is destroyed.
c10::Storage allocate_storage(int64_t nbytes);

/// Zeros on such a storage, with the geometry of `tensor`.
at::Tensor allocate_like(const at::Tensor& tensor);

class OperatorTape {
 public:
  StorageId add_storage(int64_t nbytes);
  void add(TapeOperator entry);

  /// Runs the operators that `target` needs, on `memory` of its size. Restores every generator's state; other
  /// threads must not draw from the tape's generators meanwhile, but may replay tapes of their own.
  void replay(StorageId target, const c10::Storage& memory) const;

  int64_t nbytes(StorageId storage) const { return nbytes_[storage]; }
  const std::vector<TapeOperator>& operators() const { return operators_; }
  /// The last operator before number `before` that writes the storage.
  std::optional<size_t> last_writer(StorageId storage, size_t before) const;

 private:
  std::vector<int64_t> nbytes_;               // by StorageId
  std::vector<std::vector<size_t>> writers_;  // by StorageId: numbers of operators, ascending
  std::vector<TapeOperator> operators_;
};

}  // namespace zerorun
