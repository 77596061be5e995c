// Plans the memory and the traffic of a rank: the engine trains two windows on ranks and tensors that have no
// memory (plan/imagined_ranks.h), and what it keeps and sends is counted by the functions that count it in a
// real run. Any thread.
#pragma once

#include <cstdint>

#include "config/config_types.h"
#include "engine/engine.h"
#include "plan/imagined_ranks.h"
#include "plan/model_shapes.h"

namespace zerorun {

/// What one rank sends in one optimizer step.
struct SentPerStep {
  double gathered_elements = 0;  // all-gathers: of parameters, at stage 0 of gradients
  double gathered_bytes = 0;
  double reduced_elements = 0;  // reduce-scatters of gradients
  double reduced_bytes = 0;
};

struct RankPlan {
  BytesByCategory peak;  // each category's largest number, between calls of the engine
  SentPerStep sent;
  int64_t file_bytes_per_step = 0;  // written to files in one optimizer step

  /// Bytes of the memory of the device where the rank computes, without activations.
  int64_t memory() const;
};

/// Raises `peak` to what the engine holds now. To be called after initialize(), and after each backward() and
/// step().
void note_peak(BytesByCategory& peak, const Engine& engine);

/// `config` was read for `ranks.world_size` ranks, and names an optimizer. Each parameter is used once in
/// forward, in the model's order, and but for the first one once in backward. Throws UserError if the engine
/// refuses config or model.
RankPlan plan_rank(const ModelShapes& model, const Config& config, const ImaginedRanks& ranks);

}  // namespace zerorun
