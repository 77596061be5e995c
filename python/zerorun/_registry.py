"""Finds the engine that a parameter belongs to."""

import itertools
import weakref

from ._core import UserError

_engines = weakref.WeakValueDictionary()  # by their number, in the order in which they were made
_numbers = itertools.count()


def add(engine):
    _engines[next(_numbers)] = engine


def living():
    """First those that train, the newest first: a parameter belongs to the engine that was made last."""
    engines = sorted(_engines.items(), key=lambda item: (item[1]._config["computes_only"], -item[0]))
    return [engine for _, engine in engines if not engine.is_destroyed]


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


def divide(parameters):
    """[(engine, those of the parameters that it has)] in the order in which the engines were made, the same on all ranks; and the
    parameters that no engine has. Each parameter once."""
    parameters = list({id(parameter): parameter for parameter in parameters}.values())
    for engine in living():
        if parameters and all(id(parameter) in engine._parameter_names for parameter in parameters):
            return [(engine, parameters)], []
    numbers = {id(engine): number for number, engine in _engines.items()}
    of_engines, rest = {}, []
    for parameter in parameters:
        engine = owner_of(parameter)
        if engine is None:
            rest.append(parameter)
        else:
            of_engines.setdefault(numbers[id(engine)], (engine, []))[1].append(parameter)
    return [found for _, found in sorted(of_engines.items(), key=lambda item: item[0])], rest
