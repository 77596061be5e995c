"""Makes the modules of the package deepspeed from the tables in names.py. They look a name up when it is asked for, and then
keep it, so that programs can replace it."""

import abc
import functools
import importlib
import importlib.abc
import importlib.machinery
import sys
import types

from .. import NotSupportedError
from ..errors import not_supported
from . import names
from .names import ALL, MODULES, REFUSED, REFUSED_MODULES, remedy_of_module


class _Finder(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Finds the submodules of deepspeed. Their __file__ is the table's."""

    def find_spec(self, name, path=None, target=None):
        own = name.rpartition(".")[2]  # in lower case if it is a module's, not a class's
        is_refused = name.startswith("deepspeed.") and own.islower() and remedy_of_module(name) is not None
        if name == "deepspeed" or name not in MODULES and not is_refused:
            return None
        is_package = is_refused or any(other.startswith(name + ".") for other in MODULES)
        spec = importlib.machinery.ModuleSpec(name, self, origin=names.__file__, is_package=is_package)
        spec.has_location = True
        return spec

    def exec_module(self, module):
        fill(module)


def fill_package(package):
    """Gives the package deepspeed its names and submodules, when it is imported."""
    if not any(isinstance(finder, _Finder) for finder in sys.meta_path):
        sys.meta_path.insert(0, _Finder())
    fill(package)


def fill(module):
    """Gives a module its names."""
    module.__getattr__ = functools.partial(_look_up, module)
    module.__dir__ = lambda: sorted({*vars(module), *_names_of(module)})
    module.__all__ = [name for name in _names_of(module) if not name.startswith("_")]


def _names_of(module):
    found = set()
    for source, text in MODULES.get(module.__name__, {}).items():
        found |= {name.split("=")[0] for name in text.split()} - {ALL}
        if ALL in text.split():
            found |= set(_public(source))
    return sorted(found.union(REFUSED.get(module.__name__, {}), _submodules(module)))


def _public(source):
    return {name: value for name, value in vars(importlib.import_module(source)).items()
            if not name.startswith("_") and not isinstance(value, types.ModuleType)}


def _submodules(module):
    prefix = module.__name__ + "."
    known = {*MODULES, *REFUSED_MODULES}
    return {name[len(prefix):] for name in known if name.startswith(prefix) and "." not in name[len(prefix):]}


def _look_up(module, name):
    value = _find(module, name)
    setattr(module, name, value)
    return value


def _find(module, name):
    full = f"{module.__name__}.{name}"
    for source, text in MODULES.get(module.__name__, {}).items():
        for entry in text.split():
            own, _, there = entry.partition("=")
            if own == name:
                return getattr(importlib.import_module(source), there or own)
    if full in MODULES or full in REFUSED_MODULES:
        return importlib.import_module(full)
    for source, text in MODULES.get(module.__name__, {}).items():
        if ALL in text.split() and name in _public(source):
            return _public(source)[name]
    remedy = REFUSED.get(module.__name__, {}).get(name) or remedy_of_module(module.__name__)
    if remedy is not None and not name.startswith("__"):
        return refused_class(full, remedy)
    raise AttributeError(f"module {module.__name__!r} has no attribute {name!r}: it is zerorun under the name deepspeed, whose "
                         "docs/python.md lists the names that there are", name=name, obj=module)


class _MissingAttribute(NotSupportedError, AttributeError):
    """Of a class that stands for a name which is not supported."""


class _Refused(abc.ABCMeta):
    """Of classes that can be imported, subclassed and asked for by isinstance(), but not called."""

    def __call__(cls, *args, **kwargs):
        raise not_supported(*cls._zerorun_refusal)

    def __getattr__(cls, name):
        if name.startswith("_"):
            raise AttributeError(name)
        full, remedy = cls._zerorun_refusal
        raise _MissingAttribute(f"{full}.{name} is not supported by zerorun: {remedy}")


def refused_class(full, remedy):
    """The class that stands for the name `full`. Making one, or calling the name as a function, raises NotSupportedError."""
    module, _, name = full.rpartition(".")
    return _Refused(name, (), {"__module__": module, "__doc__": f"Not supported by zerorun: {remedy}",
                               "_zerorun_refusal": (full, remedy)})
