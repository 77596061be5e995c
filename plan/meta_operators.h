// Lets a program's forward and backward run on LibTorch's meta device, where tensors have sizes but no
// values. LibTorch has kernels for it in C++ only for a part of its operators.
#pragma once

#include <memory>

namespace zerorun {

/// As long as it lives, operators that have a kernel for CPUs and none for the meta device run there too:
/// some that models often use by kernels of their own, the others by the CPU's kernel on zeros. Those whose
/// outcome depends on values (item(), nonzero()) throw as before. Attention is computed in the way that is
/// chosen on CPUs. One at a time.
class MetaOperators {
 public:
  MetaOperators();
  ~MetaOperators();
  MetaOperators(const MetaOperators&) = delete;
  MetaOperators& operator=(const MetaOperators&) = delete;

 private:
  struct Registrations;
  std::unique_ptr<Registrations> registrations_;
};

}  // namespace zerorun
