"""Hooks on the modules of a model. Copies and pickles of a module are made without them: they belong to the engine."""

import functools
import weakref

_ids = set()  # of the hooks of all engines; torch never gives an id twice


class ModuleHooks:
    """The hooks that an engine has registered. The engine owns this object."""

    def __init__(self):
        self._handles = []

    def add(self, module, handle):
        """`handle`: what the module's register function has returned."""
        self._handles.append((weakref.ref(module), handle))
        _ids.add(handle.id)
        # copy and pickle call this instead of the class's __getstate__().
        module.__dict__["__getstate__"] = functools.partial(_state_without_hooks, weakref.ref(module))

    def remove(self):
        for module, handle in self._handles:
            handle.remove()
            _ids.discard(handle.id)
            if module() is not None:
                module().__dict__.pop("__getstate__", None)
        self._handles.clear()


def _state_without_hooks(module):
    module = module()
    state = type(module).__getstate__(module)
    if not isinstance(state, dict):
        return state  # the class pickles in its own way
    state = {name: value for name, value in state.items() if name != "__getstate__"}
    for name, value in state.items():
        if "_hooks" in name and isinstance(value, dict):
            state[name] = type(value)((key, hook) for key, hook in value.items() if key not in _ids)
    return state
