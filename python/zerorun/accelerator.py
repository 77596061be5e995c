"""get_accelerator(), as deepspeed.accelerator: the device of this process, with torch's functions for it."""

import contextlib
import os

import torch

from .errors import not_supported


class Accelerator:
    """The GPU, or the CPU. Names that it lacks are those of torch.cuda, on a machine with GPUs."""

    def __init__(self):
        self._is_cuda = torch.cuda.is_available() and os.environ.get("ZERORUN_DEVICE") != "cpu"
        self._name = "cuda" if self._is_cuda else "cpu"

    def __getattr__(self, name):
        if not name.startswith("_") and self._is_cuda and hasattr(torch.cuda, name):
            return getattr(torch.cuda, name)
        raise AttributeError(f"get_accelerator() has no {name!r} on the device {self.__dict__.get('_name')}")

    def device_name(self, device_index=None):
        return self._name if device_index is None or not self._is_cuda else f"cuda:{device_index}"

    def current_device_name(self):
        return self.device_name(torch.cuda.current_device()) if self._is_cuda else "cpu"

    def current_device(self):
        return torch.cuda.current_device() if self._is_cuda else int(os.environ.get("LOCAL_RANK", 0))

    def device(self, device_index=None):
        return torch.cuda.device(device_index) if self._is_cuda else contextlib.nullcontext()

    def set_device(self, device_index):
        if self._is_cuda:
            torch.cuda.set_device(device_index)

    def device_count(self):
        """On CPUs as many as this host has ranks: LOCAL_SIZE as DeepSpeed's launcher sets it, LOCAL_WORLD_SIZE as torchrun does."""
        if self._is_cuda:
            return torch.cuda.device_count()
        return int(os.environ.get("LOCAL_SIZE") or os.environ.get("LOCAL_WORLD_SIZE") or 1)

    def is_available(self):
        return True

    def is_synchronized_device(self):
        return not self._is_cuda

    def communication_backend_name(self):
        return "nccl" if self._is_cuda else "gloo"

    def on_accelerator(self, tensor):
        return tensor.device.type == self._name

    def synchronize(self, device_index=None):
        if self._is_cuda:
            torch.cuda.synchronize(device_index)

    def empty_cache(self):
        if self._is_cuda:
            torch.cuda.empty_cache()

    def supported_dtypes(self):
        return [torch.float32, torch.float16, torch.bfloat16]

    def is_fp16_supported(self):
        return True

    def is_bf16_supported(self):
        return not self._is_cuda or torch.cuda.is_bf16_supported()

    def is_triton_supported(self):
        return self._is_cuda

    # Memory: torch counts none on the CPU.

    def _bytes(self, name, device_index):
        return getattr(torch.cuda, name)(device_index) if self._is_cuda else 0

    def memory_allocated(self, device_index=None):
        return self._bytes("memory_allocated", device_index)

    def max_memory_allocated(self, device_index=None):
        return self._bytes("max_memory_allocated", device_index)

    def memory_reserved(self, device_index=None):
        return self._bytes("memory_reserved", device_index)

    def max_memory_reserved(self, device_index=None):
        return self._bytes("max_memory_reserved", device_index)

    memory_cached, max_memory_cached = memory_reserved, max_memory_reserved

    def reset_peak_memory_stats(self, device_index=None):
        if self._is_cuda:
            torch.cuda.reset_peak_memory_stats(device_index)

    reset_max_memory_allocated = reset_max_memory_cached = reset_peak_memory_stats

    def memory_stats(self, device_index=None):
        return torch.cuda.memory_stats(device_index) if self._is_cuda else {}

    def total_memory(self, device_index=None):
        if self._is_cuda:
            return torch.cuda.get_device_properties(self.current_device() if device_index is None else device_index).total_memory
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")

    def available_memory(self, device_index=None):
        if self._is_cuda:
            return torch.cuda.mem_get_info(device_index)[0]
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_AVPHYS_PAGES")

    # Random numbers

    def random(self):
        return torch.random

    def manual_seed(self, seed):
        return torch.cuda.manual_seed(seed) if self._is_cuda else torch.manual_seed(seed)

    def manual_seed_all(self, seed):
        return torch.cuda.manual_seed_all(seed) if self._is_cuda else torch.manual_seed(seed)

    def initial_seed(self):
        return torch.cuda.initial_seed() if self._is_cuda else torch.initial_seed()

    def get_rng_state(self, device_index=None):
        return torch.cuda.get_rng_state(_or_current(device_index)) if self._is_cuda else torch.get_rng_state()

    def set_rng_state(self, new_state, device_index=None):
        if self._is_cuda:
            torch.cuda.set_rng_state(new_state, _or_current(device_index))
        else:
            torch.set_rng_state(new_state)

    # Streams: None on the CPU, as in DeepSpeed.

    @property
    def Stream(self):
        return torch.cuda.Stream if self._is_cuda else None

    @property
    def Event(self):
        return torch.cuda.Event if self._is_cuda else None

    def stream(self, stream):
        return torch.cuda.stream(stream) if self._is_cuda else contextlib.nullcontext()

    def current_stream(self, device_index=None):
        return torch.cuda.current_stream(device_index) if self._is_cuda else None

    def default_stream(self, device_index=None):
        return torch.cuda.default_stream(device_index) if self._is_cuda else None

    # Pinned memory and marks for profilers

    def pin_memory(self, tensor, align_bytes=1):
        return tensor.pin_memory() if self._is_cuda else tensor

    def is_pinned(self, tensor):
        return tensor.is_pinned() if self._is_cuda else False

    def range_push(self, msg):
        if self._is_cuda:
            torch.cuda.nvtx.range_push(msg)

    def range_pop(self):
        if self._is_cuda:
            torch.cuda.nvtx.range_pop()

    def get_compile_backend(self):
        return "inductor"

    def create_op_builder(self, class_name):
        raise not_supported(f"get_accelerator().create_op_builder({class_name!r})", "zerorun's kernels are compiled ahead")

    get_op_builder = create_op_builder


def _or_current(device_index):
    return "cuda" if device_index is None else device_index


_accelerator = None


def get_accelerator():
    global _accelerator
    if _accelerator is None:
        _accelerator = Accelerator()
    return _accelerator


def is_current_accelerator_supported():
    return True
