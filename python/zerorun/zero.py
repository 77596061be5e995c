"""zerorun.zero, like deepspeed.zero: models that are too large for one rank, and scopes with whole parameters."""

import contextlib
import threading

import torch

from . import _core
from ._registry import divide
from .comm import init_distributed
from .partitioned import note_values_made
from .raw_access import gather_arguments  # noqa: F401


_open = threading.local()  # .scopes: of this thread, the outermost first


class Init:
    """Parameters made in this scope get no memory: the operators that fill them are recorded, and initialize() runs
    them bucket by bucket, with the same bits. Copies made in the scope take no memory either; a clone() or copy.deepcopy()
    made after it is a plain tensor or module with values. A scope inside another one does nothing. The ranks join
    torch.distributed here, unless they have joined it already, as in DeepSpeed's: transformers counts on it. The arguments are
    DeepSpeed's. Only `enabled` and `module` have an effect
    (with a `module` the scope does nothing): the config has the other settings."""

    def __init__(self, module=None, data_parallel_group=None, mem_efficient_linear=True, remote_device=None,
                 pin_memory=False, config_dict_or_path=None, config=None, enabled=True, dtype=None, mpu=None,
                 zero_param_parallel_group=None, zero_quantized_weights=False, zero_quantized_nontrainable_weights=False,
                 sequence_data_parallel_group=None, param_swapper=None):
        self._scope = None
        if enabled and module is None:
            init_distributed()
            self._scope = _core.DeferredScope()

    def __enter__(self):
        if self._scope:
            self._scope.enter()
            _scopes().append(self._scope)
        return self

    def __exit__(self, kind, error, trace):
        if self._scope:
            _scopes().pop()
            self._scope.exit()
        return False


def _scopes():
    if not hasattr(_open, "scopes"):
        _open.scopes = []
    return _open.scopes


@contextlib.contextmanager
def outside_of_init():
    """The scopes of Init that are open are closed in this scope, and opened again behind it: initialize() may be called in them."""
    scopes = list(_scopes())
    for scope in reversed(scopes):
        scope.exit()
    try:
        yield
    finally:
        for scope in scopes:
            scope.enter()


class GatheredParameters(_core.ScopeStack):
    """In this scope each rank has all values of `params`, so that one rank alone can read them, or code without torch's
    operators. If `modifier_rank` is given, all ranks get that rank's writes at the end, also `parameter.data = ...`. A
    collective. The parameters may belong to several engines; those of no engine stay as they are. Before initialize()
    parameters made under zero.Init get their values here on each rank, and keep them."""

    def __init__(self, params, modifier_rank=None, fwd_module=None, enabled=True):
        super().__init__()
        if isinstance(params, torch.nn.Module):
            params = params.parameters()
        # transformers gives the biases of a model's head, which may be None.
        self._params = [params] if isinstance(params, torch.Tensor) else [each for each in params if each is not None]
        self._modifier_rank = modifier_rank
        self._enabled = enabled
        # For each scope: parameters of no engine that get the values of modifier_rank, and the scopes of engines after the first.
        self._entered = []

    def _prepare(self, depth):
        of_engines, rest = divide(self._params) if self._enabled else ([], [])
        made = self._make_values(rest)
        others = []
        self._entered[depth:] = [(made if of_engines else rest, others)]
        for engine, parameters in of_engines[1:]:
            others.append(_core.GatherScope(engine._core, parameters, self._modifier_rank))
        return (of_engines[0][0]._core, of_engines[0][1], self._modifier_rank) if of_engines else None

    def _make_values(self, parameters):
        deferred = [parameter for parameter in parameters if _core.is_deferred(parameter)]
        for parameter in deferred:
            note_values_made(parameter)
            parameter.data = _core.make_tensor(parameter)
        return deferred

    def _leave(self, depth, failed):
        """Returns whether the first engine's scope, which closes after this, ends as after an exception."""
        shared, others = self._entered[depth]
        del self._entered[depth:]
        while others:
            others.pop().close(failed)
        if failed or not self._enabled:
            return True
        # Before initialize(): rank 0's values are those that initialize() gives all ranks.
        if self._modifier_rank not in (None, 0) and torch.distributed.is_initialized():
            for parameter in shared:
                torch.distributed.broadcast(parameter.data, self._modifier_rank)
        return False


def register_external_parameter(module, parameter):
    """Has no effect: the engine sees every operator on a parameter, wherever it is called."""


def unregister_external_parameter(module, parameter):
    """Has no effect."""


@contextlib.contextmanager
def unwrap_model_for_generation(model):
    """In this scope every rank has all values of an engine's model, for many forwards (generate()). As DeepSpeed's function of
    this name; training goes on afterwards. A collective."""
    with GatheredParameters(model.parameters()):
        yield model
