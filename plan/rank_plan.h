// Plans the memory and the traffic of a rank: the engine trains two windows on ranks and tensors that have no
// memory (plan/imagined_ranks.h), and what it keeps and sends is counted by the functions that count it in a
// real run. Any thread, one plan at a time.
#pragma once

#include "base/error.h"
#include "config/config_types.h"
#include "engine/engine.h"
#include "plan/imagined_ranks.h"
#include "plan/training_plan.h"

namespace zerorun {

/// The program's forward, or the backward through it, cannot run without values. Says why.
class ForwardFailed : public Error {
 public:
  using Error::Error;
};

/// Raises `peak` to what the engine holds now. To be called after initialize(), and after each backward() and
/// step().
void note_peak(BytesByCategory& peak, const Engine& engine);

/// `config` was read for `ranks.world_size` ranks, and names an optimizer. Throws UserError if the engine
/// refuses config or model, and ForwardFailed.
RankPlan plan_rank(const PlannedTraining& training, const Config& config, const ImaginedRanks& ranks);

}  // namespace zerorun
