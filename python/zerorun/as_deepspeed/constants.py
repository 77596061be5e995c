"""What programs take from DeepSpeed's modules by name, although nothing here needs it."""

import os

import torch

# The launcher reads this file of the home folder and the working folder, as DeepSpeed's does.
DEEPSPEED_ENVIRONMENT_NAME = os.environ.get("DS_ENV_FILE", ".deepspeed_env")

_orig_torch_arange = torch.arange


def zero_wrapper_for_fp_tensor_constructor(fn, target_fp_dtype=None, target_device=None):
    """Returns fn: zero.Init records operators, and changes neither dtype nor device of a tensor. Programs replace this function
    to keep zero.Init from changing torch.arange(), which has no effect."""
    return fn
