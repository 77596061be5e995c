"""Sets NCCL's variables before this process uses NCCL, which reads them only once. cuda/nccl_environment.h says what they do;
under `zerorun` the launcher has set them already."""

import os
import sys
import warnings

_VARIABLES = ("NCCL_LAUNCH_ORDER_IMPLICIT", "NCCL_MULTI_RANK_GPU_ENABLE")


def _uses_nccl():
    """Whether torch.distributed has a process group over NCCL. Imports nothing: without torch there is none."""
    distributed = sys.modules.get("torch.distributed")
    if distributed is None or not distributed.is_available() or not distributed.is_initialized():
        return False
    return "nccl" in str(distributed.get_backend())


def set_variables():
    """Keeps variables that are set. Warns if NCCL may have been used without them."""
    missing = [name for name in _VARIABLES if name not in os.environ]
    for name in missing:
        os.environ[name] = "1"
    if missing and _uses_nccl():
        warnings.warn(
            "torch.distributed uses NCCL already, so NCCL may ignore " + " and ".join(missing) + ": import zerorun before "
            "init_process_group(), or start with `zerorun`, or set " + " ".join(name + "=1" for name in missing),
            RuntimeWarning, stacklevel=3)
