// [Note: cast copies] Autocast copies each fp32 parameter to 16 bits before an operator that computes in 16
// bits, and autograd's graph keeps the copy until backward: of a partitioned model as much memory as all of
// its 16-bit parameters. Here such a copy has memory only while an operator uses it: its storage has an owner
// that is told of operators, as parameters' storages are, and that casts the parameter again (which gathers
// it) for the next operator. So a copy costs one more cast and one more gather, in backward.
//
// A copy whose parameter has changed since it was made, by an update or by the program, cannot be made again:
// an operator that needs it throws UserError.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <memory>
#include <span>
#include <string>

#include "zero/residency_report.h"

namespace zerorun {

/// Owned by Residency. Any thread.
class CastCopies {
 public:
  /// `parameters`: their number.
  explicit CastCopies(size_t parameters);
  /// Copies that still exist have no memory afterwards; access throws.
  ~CastCopies();
  CastCopies(const CastCopies&) = delete;
  CastCopies& operator=(const CastCopies&) = delete;

  /// Takes over the memory of `copy`, a new tensor: `source`, a marked tensor of this parameter, in another
  /// dtype. Returns false, and leaves it alone, if it cannot be made again with the same strides. `name`: of
  /// the parameter.
  bool take_over(int parameter, const at::Tensor& source, const at::Tensor& copy, const std::string& name);
  /// Call this when the values of these parameters change.
  void note_changed(std::span<const int> parameters);
  /// Adds what copies take to `report`.
  void add_to(ResidencyReport& report) const;

 private:
  class Copy;
  struct Ledger;
  std::shared_ptr<Ledger> ledger_;  // shared with the copies
};

}  // namespace zerorun
