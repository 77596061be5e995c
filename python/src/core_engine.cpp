#include "base/error.h"
#include "python/src/engine_binding.h"

namespace zerorun::python {

namespace py = pybind11;

namespace {

thread_local InCall* innermost = nullptr;

}  // namespace

InCall::InCall() : outer_(std::exchange(innermost, this)) {}

InCall::~InCall() {
  innermost = outer_;
  for (CoreEngine* engine : engines_) {
    const std::lock_guard lock(engine->mutex_);
    --engine->calls_;
  }
}

// A call without an InCall keeps the GIL, without which destroy() cannot take the engine.
Engine& CoreEngine::get() {
  const std::lock_guard lock(mutex_);
  if (!engine_) throw UserError("the engine is destroyed: make another one with zerorun.initialize()");
  if (innermost != nullptr) {
    innermost->engines_.push_back(this);
    ++calls_;
  }
  return *engine_;
}

void CoreEngine::check_idle() {
  const std::lock_guard lock(mutex_);
  if (calls_ == 0) return;
  throw UserError(
      "engine.destroy() while a call of the engine runs, in another thread or around this one: wait "
      "until it has returned");
}

std::optional<Engine> CoreEngine::take() {
  const std::lock_guard lock(mutex_);
  return std::exchange(engine_, std::nullopt);
}

void CoreEngine::destroy() {
  check_idle();
  std::optional<Engine> taken = take();
  const py::gil_scoped_release no_gil;
  taken.reset();
}

// Destructors ask std::uncaught_exceptions(), which does not count exceptions of Python.
void CoreEngine::destroy_after_exception() {
  struct Ending {
    std::optional<Engine> engine;
    ~Ending() { engine.reset(); }
  };
  check_idle();
  std::optional<Engine> taken = take();
  try {
    const py::gil_scoped_release no_gil;
    const Ending ending{std::move(taken)};
    throw Error("an exception has ended the program");
  } catch (const Error&) {
  }
}

void WithoutGil::operator()(CoreEngine* engine) const {
  if (!PyGILState_Check()) {
    delete engine;
    return;
  }
  py::gil_scoped_release no_gil;
  delete engine;
}

}  // namespace zerorun::python
