"""Of deepspeed.runtime.utils what programs use: moving and cloning nested tensors, seeds, memory."""

import contextlib
import os
import random

import torch

from .. import state_dicts
from ..accelerator import get_accelerator
from ..comm import get_rank


def _map(function, item):
    """item with function applied to what is in its lists, tuples and dicts."""
    if isinstance(item, list):
        return [_map(function, value) for value in item]
    if isinstance(item, tuple):
        values = [_map(function, value) for value in item]
        return type(item)(*values) if hasattr(item, "_fields") else tuple(values)
    if isinstance(item, dict):
        return type(item)((key, _map(function, value)) for key, value in item.items())
    return function(item)


def copy_to_device(item, device, criterion_func):
    """A copy in which the tensors that criterion_func() takes are on the device."""
    return _map(lambda value: value.to(device) if criterion_func(value) else value, item)


def move_to_device(item, device, criterion_func=None):
    """item on the device. Tensors that criterion_func() takes are moved in place."""
    def move(value):
        if criterion_func is not None and criterion_func(value):
            value.data = value.to(device)
            return value
        return value.to(device)

    return _map(move, item)


def clone_tensors_for_torch_save(item, device="cpu"):
    """A copy whose tensors are copies on the device, so that torch.save() writes no more than their elements."""
    def clone(value):
        if not torch.is_tensor(value):
            return value
        if isinstance(value, state_dicts.ShownParameter):
            value.refuse_part()
        plain = value.detach().clone()  # on the parameter's own device: reads all of it
        return plain if plain.device == torch.device(device) else plain.to(device)

    return _map(clone, item)


def ensure_directory_exists(filename):
    os.makedirs(os.path.dirname(filename), exist_ok=True)


def set_random_seed(seed):
    random.seed(seed)
    torch.manual_seed(seed % 2**63)
    with contextlib.suppress(ImportError):
        import numpy

        numpy.random.seed(seed % 2**32)


def empty_cache():
    get_accelerator().empty_cache()
    get_accelerator().reset_peak_memory_stats()


def see_memory_usage(message, force=False):
    """Prints the memory of the device and the host on rank 0, if `force`."""
    if not force or get_rank() != 0:
        return
    device, gib = get_accelerator(), 1 << 30
    total, free = (os.sysconf("SC_PAGE_SIZE") * os.sysconf(name) for name in ("SC_PHYS_PAGES", "SC_AVPHYS_PAGES"))
    print(f"{message}: {device.memory_allocated() / gib:.2f} GiB of tensors (at most {device.max_memory_allocated() / gib:.2f}), "
          f"{device.memory_reserved() / gib:.2f} GiB reserved; host {(total - free) / gib:.2f} of {total / gib:.2f} GiB")
    device.reset_peak_memory_stats()


def noop_decorator(function):
    return function


@contextlib.contextmanager
def noop_context():
    yield
