"""Finds the engine that a parameter belongs to."""

import gc
import weakref

from ._core import UserError

_engines = weakref.WeakSet()


def add(engine):
    rivals = [weakref.ref(other) for other in living() if other._parameter_names.keys() & engine._parameter_names.keys()]
    if rivals:
        engine._hooks.add(engine.module, engine.module.register_forward_pre_hook(_refuse_while(rivals), prepend=True))
    _engines.add(engine)


def _refuse_while(rivals):
    """A hook for a model of which engines were made before. They may be garbage by then: a notebook's cell that runs again
    gives the new engine the old one's name."""

    def any_lives():
        return any(rival() is not None and not rival().is_destroyed for rival in rivals)

    def check(module, inputs):
        if any_lives():
            gc.collect()  # one in a cycle of references may be garbage
        if any_lives():
            raise UserError("two engines of this model are alive, and each takes the gradients from the other: destroy() the "
                            "first one before initialize(), or assign the new engine to the same name")

    return check


def living():
    return [engine for engine in _engines if not engine.is_destroyed]


def owner_of(tensor):
    """Returns the engine of this parameter; None if no engine has it."""
    return next((engine for engine in living() if id(tensor) in engine._parameter_names), None)


def engine_of(parameters):
    """Returns the engine of all these parameters; None if none of them has an engine yet, or there are none."""
    found = None
    if not parameters:
        return None
    for engine in living():
        owned = sum(id(parameter) in engine._parameter_names for parameter in parameters)
        if owned == len(parameters):
            return engine
        if owned:
            found = engine
    if found is None:
        return None
    position = next(i for i, p in enumerate(parameters) if id(p) not in found._parameter_names)
    raise UserError(f"tensor {position} is not a parameter of the engine's model, others are: pass the model's own "
                    "parameters, of one engine")
