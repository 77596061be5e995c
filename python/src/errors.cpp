#include "python/src/errors.h"

#include <torch/csrc/Exceptions.h>

#include <cstring>
#include <exception>

#include "base/error.h"
#include "base/memory_report.h"

namespace zerorun::python {
namespace {

namespace py = pybind11;

// Made once and never freed: exceptions may be raised until the interpreter ends.
PyObject* error = nullptr;
PyObject* user_error = nullptr;
PyObject* comm_error = nullptr;
PyObject* training_error = nullptr;
PyObject* internal_error = nullptr;

PyObject* make_class(py::module_& module, const char* name, PyObject* base, const char* meaning) {
  PyObject* made =
      PyErr_NewExceptionWithDoc(("zerorun." + std::string(name)).c_str(), meaning, base, nullptr);
  if (!made) throw py::error_already_set();
  module.add_object(name, made);
  return made;
}

// A message may name a file, whose name need not be UTF-8.
void set_text(PyObject* type, const char* text) {
  const auto message = py::reinterpret_steal<py::object>(
      PyUnicode_DecodeUTF8(text, static_cast<Py_ssize_t>(std::strlen(text)), "backslashreplace"));
  if (message) PyErr_SetObject(type, message.ptr());
}

void set(PyObject* type, const std::exception& exception) {
  set_text(type, (exception.what() + memory_report_of(exception.what())).c_str());
}

// Leaves out LibTorch's C++ backtrace, which is part of what().
void set_torch(PyObject* type, const c10::Error& exception) {
  const std::string text = exception.what_without_backtrace();
  set_text(type, (text + memory_report_of(text)).c_str());
}

void translate(std::exception_ptr exception) {
  if (!exception) return;
  try {
    std::rethrow_exception(exception);
  } catch (const UserError& held) {
    set(user_error, held);
  } catch (const CommError& held) {
    set(comm_error, held);
  } catch (const TrainingError& held) {
    set(training_error, held);
  } catch (const InternalError& held) {
    set(internal_error, held);
  } catch (const Error& held) {
    set(error, held);
  } catch (const std::bad_alloc& held) {
    set_text(PyExc_MemoryError, (held.what() + memory_report_of(held.what())).c_str());
  } catch (py::error_already_set&) {
    throw;  // pybind11 translates its own exceptions
  } catch (const py::builtin_exception&) {
    throw;
  } catch (python_error& held) {  // thrown by Python code that LibTorch called: autograd functions, hooks
    held.restore();
  } catch (const c10::OutOfMemoryError& held) {
    set_torch(py::module_::import("torch").attr("OutOfMemoryError").ptr(), held);
  } catch (const c10::IndexError& held) {
    set_torch(PyExc_IndexError, held);
  } catch (const c10::ValueError& held) {
    set_torch(PyExc_ValueError, held);
  } catch (const c10::TypeError& held) {
    set_torch(PyExc_TypeError, held);
  } catch (const c10::NotImplementedError& held) {
    set_torch(PyExc_NotImplementedError, held);
  } catch (const c10::Error& held) {
    set_torch(PyExc_RuntimeError, held);
  }
}

}  // namespace

void add_errors(py::module_& module) {
  error = make_class(module, "Error", PyExc_RuntimeError, "Base class of ZeroRun's errors.");
  user_error =
      make_class(module, "UserError", error, "A mistake in the config, the arguments or the program.");
  comm_error = make_class(module, "CommError", error, "Other ranks are missing, late or out of step.");
  training_error = make_class(module, "TrainingError", error, "Training cannot go on, on any rank.");
  internal_error = make_class(module, "InternalError", error, "A bug of ZeroRun: please report it.");
  py::register_local_exception_translator(&translate);
}

}  // namespace zerorun::python
