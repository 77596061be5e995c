// Functions of Python that the engine calls, on a thread that may not have the GIL.
#pragma once

#include <torch/csrc/utils/pybind.h>

#include <exception>
#include <memory>
#include <string>
#include <utility>

namespace zerorun::python {

namespace py = pybind11;

// An exception of the program, which Python gets as it is. Other ranks get its text without the traceback.
class ProgramException : public py::error_already_set {
 public:
  explicit ProgramException(const py::error_already_set& raised) : error_already_set(raised) {
    try {
      text_ = py::str(raised.type().attr("__name__")).cast<std::string>() + ": " +
              py::str(raised.value()).cast<std::string>();
      for (const py::handle note : py::getattr(raised.value(), "__notes__", py::list()))
        text_ += " (" + py::str(note).cast<std::string>() + ")";
    } catch (const std::exception&) {
      text_ += " (its text raises an exception)";
    }
  }
  const char* what() const noexcept override { return text_.c_str(); }

 private:
  std::string text_;
};

// A function of Python that the engine calls, copies and drops without the GIL.
class PythonFunction {
 public:
  explicit PythonFunction(py::object function)
      : held_(new py::object(std::move(function)), [](py::object* held) {
          const py::gil_scoped_acquire gil;
          delete held;
        }) {}

  template <typename Result, typename... Arguments>
  Result call(const Arguments&... arguments) const {
    const py::gil_scoped_acquire gil;
    try {
      return (*held_)(arguments...).template cast<Result>();
    } catch (const py::error_already_set& raised) {
      throw ProgramException(raised);
    }
  }

 private:
  std::shared_ptr<py::object> held_;
};

}  // namespace zerorun::python
