// What a rank's tensors lie on: memory, streams and the kernels that work there. The CPU's is here, CUDA's in
// cuda/. Owned by the communicator; any thread.
//
// Kernels run on the calling thread's current stream (streams.h). Their tensors are 1-D, contiguous and on
// this device; values are float32, bfloat16 or float16 unless it says otherwise. Every device gives the same
// bits, but for the order in which squares are added, and for the pattern of a NaN that arithmetic makes.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <variant>

#include "device/step_facts.h"
#include "device/streams.h"
#include "device/update_rules.h"

namespace zerorun {

/// Where a kernel tells of the first value that is not finite ([Note: findings]).
struct Finding {
  at::Tensor tally;  // a Tally
  int64_t number;    // the next one means: finite, but not in the dtype that it was converted to
};

using UpdateRule = std::variant<AdamUpdate, SgdUpdate, MomentumUpdate, LionUpdate, AmsgradUpdate,
                                AdagradUpdate, RmspropUpdate, CenteredRmspropUpdate, RmspropMomentumUpdate,
                                CenteredRmspropMomentumUpdate, LambDirection>;

/// What an update reads and writes: equally many elements of each.
struct UpdateTensors {
  at::Tensor gradient;
  at::Tensor values;  // float32
  at::Tensor first;   // float32, as many of the three as the rule has moments
  at::Tensor second;
  at::Tensor third;
  at::Tensor rounded;  // bfloat16 or float16: receives `values` rounded; undefined: not wanted
};

class Device {
 public:
  virtual ~Device() = default;

  virtual c10::Device location() const = 0;
  virtual Streams& streams() = 0;
  /// What works in the host's memory, in the calling thread.
  virtual Device& host();
  /// What parameters and slices are aligned to, in bytes.
  virtual int64_t alignment() const = 0;
  /// A zero-filled 1-D tensor. Freeing one waits for all of the device's work.
  virtual at::Tensor allocate(int64_t numel, at::ScalarType dtype) = 0;
  /// Memory with arbitrary contents for work on the current stream. Freeing it waits for nothing, and what is
  /// freed is given out again: to whoever allocates on the same stream.
  virtual at::Tensor allocate_on_stream(int64_t numel, at::ScalarType dtype) = 0;
  /// Like allocate(), in the host's memory, where copies reach it without the host's help.
  virtual at::Tensor allocate_on_host(int64_t numel, at::ScalarType dtype) = 0;

  virtual void zero(const at::Tensor& values) = 0;
  /// `to` = `from`, of the same dtype; one of them may be in the host's memory. Any dtype.
  virtual void copy(const at::Tensor& to, const at::Tensor& from) = 0;
  /// to = from * factor, computed in float32 and rounded once. They share no memory unless they are the same.
  virtual void copy_scaled(const at::Tensor& to, const at::Tensor& from, float factor,
                           const Finding& finding) = 0;
  /// to += from * factor, likewise; the finding is about what is added.
  virtual void add_scaled(const at::Tensor& to, const at::Tensor& from, float factor,
                          const Finding& finding) = 0;
  /// The same, and nobody asks what is finite.
  virtual void copy_scaled(const at::Tensor& to, const at::Tensor& from, float factor) = 0;
  virtual void add_scaled(const at::Tensor& to, const at::Tensor& from, float factor) = 0;

  /// Adds the sum of squares of `values` in float64 to `tally`, always the same bits for the same values; the
  /// first one that is not finite has the number `number` + its position.
  virtual void add_squares(const at::Tensor& tally, const at::Tensor& values, int64_t number) = 0;
  /// Publishes `tally` in `exchange` ([Note: exchange]) and empties it.
  virtual void publish(const at::Tensor& exchange, const at::Tensor& tally, int rank, int ranks) = 0;
  /// The facts in `exchange` from what is exchanged there.
  virtual void decide(const at::Tensor& exchange, int ranks, const StepRule& rule) = 0;

  /// One step of `rule`, with gradients multiplied by the facts' factor, where the facts say so. `facts`: of
  /// kFactsNumel elements.
  virtual void update(const UpdateRule& rule, const UpdateTensors& tensors, const at::Tensor& facts) = 0;
  /// master (float32) = values, where it does not round to them: what was not written stays as precise as it
  /// is.
  virtual void follow_written(const at::Tensor& master, const at::Tensor& values) = 0;
};

/// The device of all CPU tensors.
Device& cpu_device();

}  // namespace zerorun
