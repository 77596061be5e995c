// The class zerorun._core.Engine, by which Python calls the Engine of engine/engine.h. Every call that may
// wait releases the GIL. Owned by the Python class zerorun.Engine, used by one thread at a time.
#pragma once

#include <torch/csrc/utils/pybind.h>

#include <memory>
#include <mutex>
#include <optional>
#include <utility>
#include <vector>

#include "engine/engine.h"
#include "python/src/client_model.h"
#include "python/src/python_optimizer.h"

namespace zerorun::python {

/// Events for the monitors that are Python packages, until Python takes them. Any thread.
class EventQueue {
 public:
  void add(const MonitorEvent& event) {
    const std::lock_guard lock(mutex_);
    events_.push_back(event);
  }
  std::vector<MonitorEvent> take() {
    const std::lock_guard lock(mutex_);
    return std::exchange(events_, {});
  }

 private:
  std::mutex mutex_;
  std::vector<MonitorEvent> events_;
};

class CoreEngine {
 public:
  /// `optimizer`: that of the engine, or null if it uses one of its own. `events`: those of the engine.
  CoreEngine(Engine engine, std::shared_ptr<Mode> mode, bool computes_only,
             std::shared_ptr<PythonOptimizer> optimizer, std::shared_ptr<EventQueue> events)
      : optimizer_(std::move(optimizer)),
        events_(std::move(events)),
        engine_(std::move(engine)),
        mode_(std::move(mode)),
        computes_only_(computes_only) {}

  /// The engine, for the rest of the call that InCall guards. Throws UserError after destroy().
  Engine& get();
  /// Throws UserError while another thread, or this one in a backward, is in a call of the engine.
  void check_idle();
  /// Destroys the engine without the GIL. Throws what check_idle() throws.
  void destroy();
  /// Also after destroy().
  std::vector<MonitorEvent> take_events() { return events_->take(); }
  bool computes_only() const { return computes_only_; }  // it has no optimizer
  /// Like destroy(), for a program that an exception of Python ends: as after a C++ exception, the engine
  /// waits for no other rank.
  void destroy_after_exception();
  void set_training(bool trains) { mode_->store(trains); }

 private:
  friend class InCall;
  std::optional<Engine> take();

  std::shared_ptr<PythonOptimizer> optimizer_;
  std::shared_ptr<EventQueue> events_;
  std::mutex mutex_;  // for the next two
  int calls_ = 0;     // calls of the engine that run
  std::optional<Engine> engine_;
  std::shared_ptr<Mode> mode_;
  bool computes_only_;
};

/// Guards a call that releases the GIL: until the call ends, the engines that it gets count as used.
class InCall {
 public:
  InCall();
  ~InCall();
  InCall(const InCall&) = delete;
  InCall& operator=(const InCall&) = delete;

 private:
  friend class CoreEngine;
  InCall* outer_;  // this thread's call in which this one is made
  std::vector<CoreEngine*> engines_;
};

/// For calls that may wait: other threads can run Python meanwhile.
using NoGil = pybind11::call_guard<InCall, pybind11::gil_scoped_release>;

/// Destroys the engine without the GIL: the destructor may wait, and other Python threads can run meanwhile.
struct WithoutGil {
  void operator()(CoreEngine* engine) const;
};

using EngineClass = pybind11::class_<CoreEngine, std::unique_ptr<CoreEngine, WithoutGil>>;

void bind_engine(pybind11::module_& module);
/// Binds what starts an engine, and what comes before it.
void bind_starting(pybind11::module_& module);
/// Binds lists of layers and windows of micro-batches.
void bind_pipeline(pybind11::module_& module, EngineClass& engine);
/// Binds what Python asks of an engine and its config.
void bind_facts(EngineClass& engine);
/// Binds LiveLine.
void bind_live_line(pybind11::module_& module);
/// Binds plan_training().
void bind_plan(pybind11::module_& module);
/// zerorun.recompute; None if the file does not have it.
pybind11::object recompute_settings(const RecomputeConfig& config);
/// Binds what a checkpoint has.
void bind_checkpoint_facts(pybind11::module_& module);
/// Binds scopes of gathered parameters, access to the states of a parameter, and deferred initialisation.
void bind_parameter_access(pybind11::module_& module);

}  // namespace zerorun::python
