// The class zerorun._core.Engine: Engine (engine/engine.h) as Python calls it. Every call that may wait
// releases the GIL. Owned by the Python engine; one thread at a time.
#pragma once

#include <torch/csrc/utils/pybind.h>

#include <memory>
#include <optional>

#include "engine/engine.h"
#include "python/src/client_model.h"

namespace zerorun::python {

class CoreEngine {
 public:
  CoreEngine(Engine engine, std::shared_ptr<Mode> mode)
      : engine_(std::move(engine)), mode_(std::move(mode)) {}

  /// Throws UserError after destroy().
  Engine& get();
  void destroy() { engine_.reset(); }
  void set_training(bool trains) { mode_->store(trains); }

 private:
  std::optional<Engine> engine_;
  std::shared_ptr<Mode> mode_;
};

/// Destroys without the GIL: the engine waits for its threads.
struct WithoutGil {
  void operator()(CoreEngine* engine) const;
};

void bind_engine(pybind11::module_& module);
/// Scopes of gathered parameters, states of parameters, models without memory.
void bind_parameter_access(pybind11::module_& module);

}  // namespace zerorun::python
