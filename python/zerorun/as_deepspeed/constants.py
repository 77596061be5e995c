"""What programs take from DeepSpeed's modules by name, although nothing here needs it."""

import enum
import os

import torch

# The launcher reads this file of the home folder and the working folder, as DeepSpeed's does.
DEEPSPEED_ENVIRONMENT_NAME = os.environ.get("DS_ENV_FILE", ".deepspeed_env")

_orig_torch_arange = torch.arange


def zero_wrapper_for_fp_tensor_constructor(fn, target_fp_dtype=None, target_device=None):
    """Returns fn: zero.Init records operators, and changes neither dtype nor device of a tensor. Programs replace this function
    to keep zero.Init from changing torch.arange(), which has no effect."""
    return fn


class OffloadDeviceEnum(str, enum.Enum):
    """Values of zero_optimization.offload_param.device and offload_optimizer.device."""

    none = "none"
    cpu = "cpu"
    nvme = "nvme"


class OffloadStateTypeEnum(str, enum.Enum):
    """What engine.offload_states() may name."""

    optim_states = "optim_states"
    hp_params = "hp_params"
    lp_params = "lp_params"
    lp_grads = "lp_grads"
    contiguous_grad_buffer = "contiguous_grad_buffer"


GRADIENT_CLIPPING_DEFAULT = 1.0


def get_gradient_clipping(param_dict):
    """What a config says of gradient_clipping."""
    return param_dict.get("gradient_clipping", GRADIENT_CLIPPING_DEFAULT)


# DeepSpeed marks modules of such classes by itself. Here modules need no mark.
DEFAULT_LEAF_MODULE_CLASSES, DEFAULT_LEAF_MODULE_NAMES, DEFAULT_LEAF_MODULE_NAME_SUFFIXES = [], [], []
