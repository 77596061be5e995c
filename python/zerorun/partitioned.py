"""What DeepSpeed's partitioned parameters and their optimizer say of themselves, for programs that ask: ds_id, ds_shape, ds_numel,
ds_status and ds_persist of a parameter that stage 3 partitions or that zero.Init has made, and optimizer.parameter_offload."""

import enum
import itertools

import torch
from torch.utils.weak import WeakIdKeyDictionary

from . import _core, _registry


class ZeroParamStatus(enum.Enum):
    AVAILABLE = 1  # all values are in memory
    NOT_AVAILABLE = 2
    INFLIGHT = 3  # never here


class ZeroParamType(enum.Enum):
    NORMAL = 1
    PARTITIONED = 2
    REMOTE = 3


_ids = WeakIdKeyDictionary()
_next_id = itertools.count()


def is_partitioned(parameter):
    engine = _registry.owner_of(parameter)
    if engine is not None:
        return engine.zero_optimization_partition_weights()
    return parameter in _ids or _core.is_deferred(parameter)


def note_values_made(parameter):
    """Call this before a parameter that zero.Init has made gets its values, before initialize()."""
    _id(parameter)


def _id(parameter):
    if parameter not in _ids:
        _ids[parameter] = next(_next_id)
    return _ids[parameter]


def _status(parameter):
    if _core.is_deferred(parameter):
        return ZeroParamStatus.NOT_AVAILABLE
    try:
        parameter.untyped_storage().data_ptr()
    except RuntimeError:  # the engine refuses raw access
        return ZeroParamStatus.NOT_AVAILABLE
    return ZeroParamStatus.AVAILABLE


_gathered = WeakIdKeyDictionary()  # for each parameter that the program has gathered: its open scope


def _all_gather(parameter):
    """DeepSpeed's method of such parameters: they have their values on each rank until partition(). A collective."""
    def all_gather(param_list=None, async_op=False, hierarchy=0):
        from .zero import GatheredParameters

        for each in [parameter] if param_list is None else param_list:
            if each not in _gathered:
                scope = GatheredParameters(each)
                scope.__enter__()
                _gathered[each] = scope
        return _Done()

    return all_gather


def _partition(parameter):
    """Ends what all_gather() has begun; all ranks must have written the same. A collective."""
    def partition(param_list=None, hierarchy=0, has_been_updated=False, free_data=True):
        for each in [parameter] if param_list is None else param_list:
            if each in _gathered:
                _gathered.pop(each).__exit__(None, None, None)

    return partition


class _Done:
    """What all_gather_coalesced() returns, to wait for."""

    def wait(self, **kwargs):
        """Has no effect: the values are there."""


def _stays(parameter):
    engine = _registry.owner_of(parameter)
    return engine is not None and _core.stays_whole(engine._core, parameter)


class _Fact:
    """An attribute of torch.nn.Parameter that only partitioned parameters have. An attribute of the same name that a program sets
    on a parameter comes before it."""

    def __init__(self, name, value):
        self._name, self._value = name, value

    def __get__(self, parameter, kind=None):
        if parameter is not None and is_partitioned(parameter):
            return self._value(parameter)
        raise AttributeError(f"{kind.__name__} has no {self._name}: only parameters that stage 3 partitions have it")


for _name, _value in {
    "ds_id": _id,
    "ds_shape": lambda parameter: parameter.shape,
    "ds_numel": lambda parameter: parameter.numel(),
    "ds_status": _status,
    "ds_persist": _stays,
    "all_gather": _all_gather,
    "all_gather_coalesced": _all_gather,
    "partition": _partition,
    "is_external_param": lambda parameter: False,  # no module has to register another's parameter
    "ds_active_sub_modules": lambda parameter: set(),  # modules need no hooks here
}.items():
    setattr(torch.nn.Parameter, _name, _Fact(_name, _value))


class ParameterOffload:
    """optimizer.parameter_offload at stage 3: the module and the lists of hooks that programs take off for generation and put on
    again. The lists are empty: operators gather parameters, not hooks of modules."""

    def __init__(self, model):
        self.module = _Module(model)
        self.forward_hooks, self.backward_hooks = [], []

    def _register_deepspeed_module(self, module, count=None):
        """Has no effect."""


class _Module:
    """The model, with DeepSpeed's method of its modules."""

    def __init__(self, model):
        self._model = model

    def __getattr__(self, name):
        return getattr(self.__dict__["_model"], name)

    def ds_external_parameters(self):
        return iter(())
