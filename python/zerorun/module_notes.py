"""What initialize() says about a model's modules, and remedies that errors of a forward or backward name."""

import contextlib
import logging
import os

import torch

from ._core import CommError, saved_tensors
from .inputs import shown

log = logging.getLogger("zerorun")

_LEAF = ("If ranks use different parameters of a module (experts without tokens), name it with "
         "zerorun.utils.set_z3_leaf_modules(): all its parameters are then gathered on all ranks")
_BUFFERS = ("Buffers of the model have another dtype than its parameters, which the engine converts: set "
            "\"data_types\": {\"buffer_dtype\": \"bf16\"} (or \"fp16\") in the config to convert both, or convert parameters "
            "in a forward that computes in float32 (weight.float())")


def log_conversions(model, before, dtype):
    """Logs which parameters of mixed dtypes the engine has converted. `before`: dtypes by name."""
    floating = {name: kind for name, kind in before.items() if kind.is_floating_point}
    if dtype == torch.float32 or len(set(floating.values())) < 2:
        return
    wide = [name for name, kind in floating.items() if kind == torch.float32]
    if wide:
        more = f" and {len(wide) - 3} more" if len(wide) > 3 else ""
        log.warning("parameters that were float32 beside others of 16 bits run in %s now: %s%s. Modules that need float32 "
                    "convert in their forward (weight.float()); the optimizer's master weights are float32",
                    str(dtype).removeprefix("torch."), ", ".join(wide[:3]), more)


def log_left_out(checkpoint, model):
    """Logs which parameters of the model a checkpoint does not have, as they were frozen and left out."""
    excluded = {saved.name for saved in saved_tensors(os.fsencode(checkpoint)) if saved.excluded}
    out = [name for name, _ in model.named_parameters() if name in excluded]
    if out:
        more = f" and {len(out) - 3} more" if len(out) > 3 else ""
        log.warning("the checkpoint %s was saved without frozen parameters: %s%s keep the values that the model has here. "
                    "Load them before, if they are not those of the run that saved it", shown(checkpoint), ", ".join(out[:3]), more)


@contextlib.contextmanager
def explained_errors(model):
    """Adds the remedy to errors whose text cannot name it."""
    try:
        yield
    except (CommError, RuntimeError) as error:
        remedy = _remedy_of(error, model)
        if remedy and remedy not in str(error):
            error.args = (f"{error}. {remedy}",)
        raise


def _remedy_of(error, model):
    if "ranks disagree" in str(error) and "all_gather of parameters of" in str(error):
        return _LEAF
    if not isinstance(error, CommError) and _is_of_dtypes(str(error)) and _has_wide_buffers(model):
        return _BUFFERS
    return ""


def _is_of_dtypes(text):
    return "dtype" in text or "scalar type" in text or "expected" in text.lower() and ("Float" in text or "float" in text)


def _has_wide_buffers(model):
    narrow = any(parameter.dtype in (torch.bfloat16, torch.float16) for parameter in model.parameters())
    return narrow and any(buffer.dtype == torch.float32 for buffer in model.buffers())
