// The interface of a rank's device: memory, streams and kernels. The CPU's device is a static object of this
// folder; a GPU's device (in cuda/) belongs to its communicator. Any thread may call a device.
//
// Kernels run on the calling thread's current stream (streams.h). Their tensors are 1-D, contiguous and on
// this device; values are float32, bfloat16 or float16 unless stated otherwise. All devices give the same
// bits, with two exceptions: devices add squares in different orders, and the bit pattern of a NaN that
// arithmetic produces may differ.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstddef>
#include <cstdint>
#include <memory>

#include "device/rounding.h"
#include "device/streams.h"

namespace zerorun {

/// Where a kernel reports the first value that is not finite ([Note: finite checks]).
struct FiniteCheck {
  at::Tensor tally;  // a Tally
  /// Reported for a value that is infinite or NaN. For a finite value that overflows in the result's dtype,
  /// number + 1 is reported.
  int64_t number;
};

// Defined in device/step_facts.h and device/update_rules.h, which only those include who compute with them.
struct StepRule;
struct UpdateRule;

/// The tensors that an update reads and writes, all with the same number of elements.
struct UpdateTensors {
  at::Tensor gradient;
  at::Tensor values;  // float32 or bfloat16
  // first to third: moments, all float32, all bfloat16 or all codes (uint8); undefined if the rule has fewer
  at::Tensor first;
  at::Tensor second;
  at::Tensor third;
  at::Tensor rounded;  // bfloat16 or float16: receives float32 `values` rounded; undefined: not written
  RandomRounding rounding = {};  // of bfloat16 values and moments
  /// Of codes (moment_codes.h): float32, one number for each block of elements. The tensors begin with a
  /// block.
  at::Tensor first_scales = {};
  at::Tensor second_scales = {};

  bool has_codes() const { return first_scales.defined(); }
};

class Device {
 public:
  virtual ~Device() = default;

  virtual c10::Device location() const = 0;
  virtual Streams& streams() = 0;
  /// The device that works on host memory, in the calling thread.
  virtual Device& host();
  /// Alignment of parameters and slices, in bytes.
  virtual int64_t alignment() const = 0;
  /// Returns a zero-filled 1-D tensor. Freeing the tensor waits for all of the device's work.
  virtual at::Tensor allocate(int64_t numel, at::ScalarType dtype) = 0;
  /// Returns uninitialised memory for work on the current stream. Freeing the memory does not wait, and later
  /// allocations on the same stream reuse it.
  virtual at::Tensor allocate_on_stream(int64_t numel, at::ScalarType dtype) = 0;
  /// Call this before `memory`, from allocate_on_stream(), is freed, for each other stream that has used it.
  /// The memory is not given back to the system before the work that `stream` has now is done.
  virtual void record_stream(const at::Tensor& /*memory*/, StreamId /*stream*/) {}
  /// Gives freed memory that is kept for allocate_on_stream() and for LibTorch's operators back to the
  /// system. May wait for all of the device's work.
  virtual void empty_cache() {}
  /// Like allocate(), in host memory that the device copies to and from directly (page-locked).
  virtual at::Tensor allocate_on_host(int64_t numel, at::ScalarType dtype) = 0;
  /// Page-locks host memory that exists already, so that the device copies to and from it directly, until the
  /// result is destroyed. Both addresses are multiples of the page size. Null if the device has no use for
  /// it.
  virtual std::shared_ptr<void> pin(void* /*memory*/, size_t /*bytes*/) { return nullptr; }

  /// The size of a bucket, in bytes, above which collectives of `world_size` ranks hardly get faster.
  virtual int64_t bucket_bytes(int /*world_size*/) const { return int64_t{32} << 20; }

  virtual void zero(const at::Tensor& values) = 0;
  /// to = from, of the same dtype; one of them may be in host memory. Any dtype.
  virtual void copy(const at::Tensor& to, const at::Tensor& from) = 0;
  /// to = from * factor, computed in float32 and rounded once. `to` and `from` are the same memory or do not
  /// overlap.
  virtual void copy_scaled(const at::Tensor& to, const at::Tensor& from, float factor,
                           const FiniteCheck& finite_check) = 0;
  /// to += from * factor, computed in float32 and rounded once. `finite_check` checks the added values, not
  /// the sum.
  virtual void add_scaled(const at::Tensor& to, const at::Tensor& from, float factor,
                          const FiniteCheck& finite_check) = 0;
  /// Like the functions above, but without a check for finite values.
  virtual void copy_scaled(const at::Tensor& to, const at::Tensor& from, float factor) = 0;
  virtual void add_scaled(const at::Tensor& to, const at::Tensor& from, float factor) = 0;

  /// Adds `weight` times the sum of squares of `values` in float64 to `tally`; the same values give the same
  /// bits. Reports the first value that is not finite as `number` + its position. Weight 0: values that
  /// another rank counts; the sum still becomes NaN if one of them is not finite.
  virtual void add_squares(const at::Tensor& tally, const at::Tensor& values, int64_t number,
                           double weight) = 0;
  /// Writes `tally` to `exchange` ([Note: exchange]) and resets `tally` to zeros.
  virtual void publish(const at::Tensor& exchange, const at::Tensor& tally, int rank, int ranks) = 0;
  /// Computes the StepFacts from the all-reduced elements of `exchange`, and stores them in `exchange` after
  /// these elements.
  virtual void decide(const at::Tensor& exchange, int ranks, const StepRule& rule) = 0;

  /// If StepFacts::apply is set, does one step of `rule` with gradients multiplied by StepFacts::factor.
  /// Otherwise does nothing. `facts` has kFactsNumel elements.
  virtual void update(const UpdateRule& rule, const UpdateTensors& tensors, const at::Tensor& facts) = 0;
  /// Sets each master weight (float32) to its value, unless the master weight already rounds to the value. So
  /// master weights of values that the program has not overwritten keep their full precision.
  virtual void follow_written(const at::Tensor& master, const at::Tensor& values) = 0;
};

/// The device of all CPU tensors.
Device& cpu_device();

}  // namespace zerorun
