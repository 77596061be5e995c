// Counts the bytes that tensors of LibTorch's meta device would take, had they memory. As long as a counter
// lives, allocations of its thread are also reported to LibTorch's memory profiler, as those of other devices
// are: by it the engine measures what blocks keep (activations/measured_memory.h).
#pragma once

#include <cstdint>
#include <memory>

namespace zerorun {

/// During its lifetime the calling thread's meta tensors are counted. Lives on one thread, one at a time.
class MetaMemory {
 public:
  MetaMemory();
  ~MetaMemory();
  MetaMemory(const MetaMemory&) = delete;
  MetaMemory& operator=(const MetaMemory&) = delete;

  /// The most bytes held at a time so far, of tensors made since the constructor.
  int64_t peak() const;
  /// The same of those that gathers and reductions have made for themselves (AllocatingFor).
  int64_t peak_of_transfers() const;

  struct Tally;

 private:
  std::shared_ptr<Tally> tally_;
};

/// During its lifetime this thread's meta tensors are not counted: those that the engine allocates, and
/// counts itself.
class UncountedMetaMemory {
 public:
  UncountedMetaMemory();
  ~UncountedMetaMemory();
  UncountedMetaMemory(const UncountedMetaMemory&) = delete;
  UncountedMetaMemory& operator=(const UncountedMetaMemory&) = delete;

 private:
  std::shared_ptr<MetaMemory::Tally> outer_;
};

}  // namespace zerorun
