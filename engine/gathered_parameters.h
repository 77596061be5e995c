// A scope in which chosen parameters are whole on every rank and stay so: for access that not all ranks make
// alike, and for raw access to their memory. A collective: all ranks open and close the same scopes. Used by
// the engine's thread.
//
//   {
//     zerorun::GatheredParameters scope(engine, {model->head->weight}, /*modifier_rank=*/0);
//     if (engine.communicator().rank() == 0) load_into(model->head->weight);
//   }  // all ranks now have what rank 0 wrote
#pragma once

#include <memory>
#include <optional>
#include <vector>

#include "engine/engine.h"

namespace zerorun {

class GatheredParameters {
 public:
  /// `parameters` are the model's, trained or frozen. What `modifier_rank` writes is every rank's when the
  /// scope ends; without one, what is written by other means than operators that all ranks run alike is
  /// lost. Throws UserError for a tensor that is not a parameter of the engine's model.
  GatheredParameters(Engine& engine, const std::vector<at::Tensor>& parameters,
                     std::optional<int> modifier_rank = std::nullopt);
  /// Closes the scope; while an exception is on its way, without telling other ranks what the modifier rank
  /// has written: it is lost where the values are spread over ranks, and stays where they are not.
  ~GatheredParameters() noexcept(false);
  GatheredParameters(const GatheredParameters&) = delete;
  GatheredParameters& operator=(const GatheredParameters&) = delete;
  /// A scope ends where its block does: a smart pointer's destructor could not pass its errors on.
  static void* operator new(size_t) = delete;

 private:
  void share_writes();

  std::shared_ptr<EngineState> state_;
  std::vector<int> bucketed_;      // indices of parameters
  std::vector<at::Tensor> whole_;  // frozen ones outside of buckets
  std::vector<int> buckets_;       // of the bucketed ones, ascending
  std::optional<int> modifier_rank_;
  int exceptions_;  // on their way when the scope was opened
};

}  // namespace zerorun
