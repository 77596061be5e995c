"""ZeRO for torch.nn.Module, with DeepSpeed's interface: `import zerorun as deepspeed`.

    engine, optimizer, loader, lr_scheduler = zerorun.initialize(model=model, config="ds_config.json")
    for batch in loader:
        loss = engine(batch)
        engine.backward(loss)
        engine.step()

docs/python.md has the differences.
"""

from ._check import load_core as _load_core
from ._nccl import set_variables as _set_nccl_variables

_set_nccl_variables()
_core = _load_core()

from ._core import CommError, Error, InternalError, TrainingError, UserError  # noqa: E402
from . import _new_tensor, checkpointing, comm, ops, pipe, runtime, utils, zero  # noqa: E402
from .comm import init_distributed  # noqa: E402
from .engine import DeepSpeedEngine, Engine  # noqa: E402
from .errors import NotSupportedError  # noqa: E402
from .arguments import add_config_arguments  # noqa: E402
from .data import RepeatingLoader  # noqa: E402
from .losses import linear_cross_entropy  # noqa: E402
from .pipe import PipelineModule  # noqa: E402
from .planning import plan  # noqa: E402
from .starting import initialize  # noqa: E402
from .tensor_ranks import set_autotp_mode, tp_model_init  # noqa: E402

__version__ = _core.version


def __getattr__(name):
    from .errors import not_supported_attribute

    raise not_supported_attribute(name)


__all__ = [
    "CommError", "DeepSpeedEngine", "Engine", "Error", "InternalError", "NotSupportedError", "PipelineModule",
    "RepeatingLoader", "TrainingError", "UserError", "add_config_arguments", "checkpointing", "comm", "init_distributed",
    "initialize", "linear_cross_entropy", "ops", "pipe", "plan", "runtime", "set_autotp_mode", "tp_model_init", "utils", "zero",
]
