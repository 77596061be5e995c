"""zerorun.zero, like deepspeed.zero: models that are too large for one rank, and scopes with whole parameters."""

import torch

from . import _core
from ._registry import engine_of
from .raw_access import gather_arguments  # noqa: F401


class Init:
    """Parameters made in this scope get no memory: the operators that fill them are recorded, and initialize() runs
    them bucket by bucket, with the same bits. The arguments are DeepSpeed's. Only `enabled` and `module` have an effect
    (with a `module` the scope does nothing): the config has the other settings."""

    def __init__(self, module=None, data_parallel_group=None, mem_efficient_linear=True, remote_device=None,
                 pin_memory=False, config_dict_or_path=None, config=None, enabled=True, dtype=None, mpu=None,
                 zero_param_parallel_group=None, zero_quantized_weights=False, zero_quantized_nontrainable_weights=False,
                 sequence_data_parallel_group=None, param_swapper=None):
        self._scope = _core.DeferredScope() if enabled and module is None else None

    def __enter__(self):
        if self._scope:
            self._scope.enter()
        return self

    def __exit__(self, kind, error, trace):
        if self._scope:
            self._scope.exit()
        return False


class GatheredParameters:
    """In this scope each rank has all values of `params`, so that one rank alone can read them, or code without torch's
    operators. If `modifier_rank` is given, all ranks get that rank's writes at the end. A collective."""

    def __init__(self, params, modifier_rank=None, fwd_module=None, enabled=True):
        if isinstance(params, torch.nn.Module):
            params = params.parameters()
        self._params = [params] if isinstance(params, torch.Tensor) else list(params)
        self._modifier_rank = modifier_rank
        self._enabled = enabled
        self._scope = None

    def __enter__(self):
        if not self._enabled or not self._params:
            return self
        engine = engine_of(self._params)
        if engine is not None:
            self._scope = _core.GatherScope(engine._core, self._params, self._modifier_rank)
        return self

    def __exit__(self, kind, error, trace):
        scope, self._scope = self._scope, None
        if scope is not None:
            scope.close(kind is not None)
        return False


def register_external_parameter(module, parameter):
    """Has no effect: the engine sees every operator on a parameter, wherever it is called."""


def unregister_external_parameter(module, parameter):
    """Has no effect."""
