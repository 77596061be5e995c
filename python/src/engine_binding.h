// The class zerorun._core.Engine, by which Python calls the Engine of engine/engine.h. Every call that may
// wait releases the GIL. Owned by the Python class zerorun.Engine, used by one thread at a time.
#pragma once

#include <torch/csrc/utils/pybind.h>

#include <memory>
#include <optional>

#include "engine/engine.h"
#include "python/src/client_model.h"
#include "python/src/python_optimizer.h"

namespace zerorun::python {

class CoreEngine {
 public:
  /// `optimizer`: that of the engine, or null if it uses one of its own.
  CoreEngine(Engine engine, std::shared_ptr<Mode> mode, bool computes_only,
             std::shared_ptr<PythonOptimizer> optimizer)
      : optimizer_(std::move(optimizer)),
        engine_(std::move(engine)),
        mode_(std::move(mode)),
        computes_only_(computes_only) {}

  /// Throws UserError after destroy().
  Engine& get();
  void destroy() { engine_.reset(); }
  bool computes_only() const { return computes_only_; }  // it has no optimizer
  /// Like destroy(), for a program that an exception of Python ends: as after a C++ exception, the engine
  /// waits for no other rank.
  void destroy_after_exception();
  void set_training(bool trains) { mode_->store(trains); }

 private:
  std::shared_ptr<PythonOptimizer> optimizer_;
  std::optional<Engine> engine_;
  std::shared_ptr<Mode> mode_;
  bool computes_only_;
};

/// Destroys the engine without the GIL: the destructor may wait, and other Python threads can run meanwhile.
struct WithoutGil {
  void operator()(CoreEngine* engine) const;
};

void bind_engine(pybind11::module_& module);
/// Binds scopes of gathered parameters, access to the states of a parameter, and deferred initialisation.
void bind_parameter_access(pybind11::module_& module);

}  // namespace zerorun::python
