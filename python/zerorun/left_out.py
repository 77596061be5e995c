"""Parameters that require grad and are in no parameter group. Nothing trains them, with torch's optimizers as with DeepSpeed, so
the engine takes them for frozen."""

import contextlib
import logging

from torch.utils.weak import WeakIdKeyDictionary

log = logging.getLogger("zerorun")

_frozen = WeakIdKeyDictionary()  # those that freeze() has frozen for an engine


@contextlib.contextmanager
def frozen(named_parameters, groups):
    """Freezes them, until release(); at once again if the code in this scope raises. Without a group that has a parameter to train
    nothing is frozen: that is an error of the engine."""
    earlier = [parameter for _, parameter in named_parameters if parameter in _frozen]
    _set(earlier, False)  # another engine's, which has the model no longer
    grouped = {id(parameter) for group in groups for parameter in group.parameters}
    chosen = {name: parameter for name, parameter in named_parameters if parameter.requires_grad and id(parameter) not in grouped}
    if not any(parameter.requires_grad and id(parameter) in grouped for _, parameter in named_parameters):
        chosen = {}
    _set(chosen.values(), True)
    try:
        yield
    except BaseException:
        _set(chosen.values(), False)
        _set(earlier, True)
        raise
    if chosen:
        log.warning("no parameter group has %s%s: nothing trains them, and they are frozen (requires_grad_(False)). Add them to a group, "
                    "or freeze them before initialize()", ", ".join(list(chosen)[:4]),
                    f" and {len(chosen) - 4} more parameters" if len(chosen) > 4 else "")


def release(parameters):
    """The engine ends: its parameters are as they were before."""
    _set([parameter for parameter in parameters if parameter in _frozen], False)


def _set(parameters, is_frozen):
    for parameter in parameters:
        parameter.requires_grad_(not is_frozen)
        if is_frozen:
            _frozen[parameter] = True
        else:
            _frozen.pop(parameter, None)
