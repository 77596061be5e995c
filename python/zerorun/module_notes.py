"""What initialize() says about a model's modules, and remedies that errors of a forward or backward name."""

import contextlib
import logging
import os
import traceback

import torch

from ._core import CommError, Error, memory_report_of, saved_tensors
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
                    "convert in their forward (weight.float())",
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
def explained_errors(model, whole_shapes=None):
    """Adds the remedy to errors whose text cannot name it. `whole_shapes`: of parameters that are split, by id."""
    try:
        yield
    except (CommError, MemoryError, RuntimeError, ValueError, IndexError) as error:
        if "\nmemory of rank " not in str(error) and (report := memory_report_of(str(error))):
            error.args = (f"{error}{report}",)
        remedy = _remedy_of(error, model) or _of_parts(error, model, whole_shapes)
        if remedy and remedy not in str(error):
            error.args = (f"{error}. {remedy}",)
        raise


def _remedy_of(error, model):
    if "ranks disagree" in str(error) and "all_gather of parameters of" in str(error):
        return _LEAF
    if isinstance(error, RuntimeError) and not isinstance(error, CommError) and _is_of_dtypes(str(error)) and _has_wide_buffers(model):
        return _BUFFERS
    return ""


def _of_parts(error, model, whole_shapes):
    """What to say if the innermost module that raised and has split parameters may have counted on whole ones."""
    if not whole_shapes or isinstance(error, Error) or "split among tensor ranks" in str(error):
        return ""
    names = {id(module): name for name, module in model.named_modules()}
    module, parts = None, []
    for frame, _ in traceback.walk_tb(error.__traceback__):
        each = frame.f_locals.get("self")
        if id(each) not in names:
            continue
        found = [f"{name} is {list(parameter.shape)} of {list(whole_shapes[id(parameter)])}"
                 for name, parameter in each.named_parameters() if id(parameter) in whole_shapes]
        if found:
            module, parts = each, found
    if module is None:
        return ""
    return (f"Module {names[id(module)]} ({type(module).__name__}) has parts of its parameters on this tensor rank "
            f"({', '.join(parts[:4])}). If it writes whole sizes itself, such as a number of heads or features, let it take those "
            "of its parts (view(..., -1, head_dim)), or leave it whole in the tensor plan")


def _is_of_dtypes(text):
    return "dtype" in text or "scalar type" in text or "expected" in text.lower() and ("Float" in text or "float" in text)


def _has_wide_buffers(model):
    narrow = any(parameter.dtype in (torch.bfloat16, torch.float16) for parameter in model.parameters())
    return narrow and any(buffer.dtype == torch.float32 for buffer in model.buffers())
