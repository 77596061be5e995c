// A scope in which chosen parameters are whole on every rank and stay so: for access that differs between
// ranks, and for raw access to their memory. A collective: all ranks open and close the same scopes. Used by
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
  /// `parameters` are the model's, trained or frozen. When the scope ends, all ranks get what `modifier_rank`
  /// wrote. Without one, only writes by operators that all ranks run alike are sure to stay. Throws UserError
  /// for a tensor that is not a parameter of the engine's model.
  GatheredParameters(Engine& engine, const std::vector<at::Tensor>& parameters,
                     std::optional<int> modifier_rank = std::nullopt);
  /// Closes the scope. During an exception the modifier rank's writes are not broadcast: they are lost where
  /// each rank stores only its slice of the values, and stay on that rank where every rank stores all.
  ~GatheredParameters() noexcept(false);
  GatheredParameters(const GatheredParameters&) = delete;
  GatheredParameters& operator=(const GatheredParameters&) = delete;
  /// A scope must end with its block: its destructor may throw, and that of a smart pointer could not pass
  /// that on.
  static void* operator new(size_t) = delete;

 private:
  void share_writes();

  std::shared_ptr<EngineState> state_;
  std::vector<int> bucketed_;      // indices of parameters
  std::vector<at::Tensor> whole_;  // frozen parameters outside of buckets
  std::vector<int> buckets_;       // those of bucketed_, ascending
  std::optional<int> modifier_rank_;
  int exceptions_;  // uncaught when the scope was opened
};

}  // namespace zerorun
