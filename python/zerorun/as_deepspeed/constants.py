"""What programs take from DeepSpeed's modules by name, although nothing here needs it."""

import datetime
import enum
import functools
import os
import re

import torch

from ..accelerator import get_accelerator

# The launcher reads this file of the home folder and the working folder, as DeepSpeed's does.
DEEPSPEED_ENVIRONMENT_NAME = os.environ.get("DS_ENV_FILE", ".deepspeed_env")

TORCH_DISTRIBUTED_DEFAULT_PORT = 29500
default_pg_timeout = datetime.timedelta(minutes=10)

# Of the checkout that a package was built from, which nothing here needs.
git_hash = git_branch = "unknown"

_orig_torch_arange = torch.arange


def zero_wrapper_for_fp_tensor_constructor(fn, target_fp_dtype=None, target_device=None):
    """Returns fn: zero.Init records operators, and changes neither dtype nor device of a tensor. Programs replace this function
    to keep zero.Init from changing torch.arange(), which has no effect."""
    return fn


def instrument_w_nvtx(func):
    """A decorator: on a GPU the function's time has its name in a profile."""

    @functools.wraps(func)
    def named(*args, **kwargs):
        get_accelerator().range_push(func.__qualname__)
        try:
            return func(*args, **kwargs)
        finally:
            get_accelerator().range_pop()

    return named


def is_compile_supported():
    return hasattr(torch, "compile")


def required_torch_version(min_version=None, max_version=None):
    """Whether torch is at least min_version and at most max_version, which may be numbers or texts."""
    def key(version):
        return [int(part) for part in re.findall(r"\d+", str(version).split("+")[0])[:2]]

    found = key(torch.__version__)
    return (min_version is None or found >= key(min_version)) and (max_version is None or found <= key(max_version))


def _nccl_version():
    try:
        return ".".join(map(str, torch.cuda.nccl.version()[:2]))
    except (AttributeError, RuntimeError):  # torch has no NCCL
        return "0.0"


torch_info = {
    "version": ".".join(torch.__version__.split(".")[:2]), "cuda_version": torch.version.cuda or "0.0", "nccl_version": _nccl_version(),
    "hip_version": "0.0", "bf16_support": True,
}


class OffloadDeviceEnum(str, enum.Enum):
    none = "none"
    cpu = "cpu"
    nvme = "nvme"


class OffloadStateTypeEnum(str, enum.Enum):
    optim_states = "optim_states"
    hp_params = "hp_params"
    lp_params = "lp_params"
    lp_grads = "lp_grads"
    contiguous_grad_buffer = "contiguous_grad_buffer"
