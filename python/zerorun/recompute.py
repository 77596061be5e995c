"""zerorun.recompute for Python modules: the forwards of chosen modules run under torch.utils.checkpoint."""

import functools
import logging
import time

import torch.utils.checkpoint
from torch.utils import _pytree

from . import _core
from .errors import UserError
from .runtime.pipe.module import PipelineModule

log = logging.getLogger("zerorun")


def _items_of_lists(model):
    """The items of the model's lists of layers, with their names, but not those inside of others."""
    lists = (torch.nn.ModuleList, torch.nn.Sequential)
    found, inside = [], set()
    for name, module in model.named_modules():
        if not isinstance(module, lists) or id(module) in inside:
            continue
        for key, item in module.named_children():
            found.append((f"{name}.{key}" if name else key, item))
            inside.update(id(inner) for inner in item.modules())
    return found


def _chosen(model, settings, core):
    """The modules to recompute, with their names. Throws UserError if there are none."""
    if settings["nvme_path"]:
        raise UserError("zerorun.recompute.nvme_path: torch.utils.checkpoint keeps the inputs of a Python model's modules in memory: "
                        "leave the key out")
    if settings["patterns"]:
        named = {name: module for name, module in model.named_modules()}
        for pattern in settings["patterns"]:
            if not any(_core.matches_name(pattern, name) for name in named):
                raise UserError(f"zerorun.recompute.patterns: {pattern!r} names no module of the model; * stands for one part of "
                                "a name, as in 'model.layers.*.mlp'")
        return [(name, module) for name, module in named.items() if any(_core.matches_name(p, name) for p in settings["patterns"])]
    if settings["budget"] and core is None:
        raise UserError("plan(): a budget of recomputation is spent by what the first step measures: plan with \"every\" or \"patterns\"")
    if settings["budget"] and isinstance(model, PipelineModule):
        raise UserError("zerorun.recompute.budget: a PipelineModule's layers are recomputed by number: set "
                        "pipeline.activation_checkpoint_interval instead")
    items = _items_of_lists(model)
    if not items:
        key = "budget" if settings["budget"] else "every"
        raise UserError(f"zerorun.recompute.{key}: the model has no torch.nn.ModuleList or Sequential, whose items are its blocks: "
                        "write \"patterns\" with the names of modules")
    return items if settings["budget"] else items[::settings["every"]]


def _bytes_of(values):
    return sum(leaf.nbytes for leaf in _pytree.tree_leaves(values) if isinstance(leaf, torch.Tensor))


class _Measured:
    """A forward that says what its recomputation costs: its second call."""

    def __init__(self, core, name, forward):
        self._core, self._name, self._forward, self._is_again = core, name, forward, False

    def __call__(self, *args, **kwargs):
        if not self._is_again:
            self._is_again = True
            return self._forward(*args, **kwargs)
        with _core.MeasuredMemory() as memory:
            start = time.perf_counter()
            outputs = self._forward(*args, **kwargs)
            # The outputs would be in memory without recomputation too, as inputs of what comes next.
            kept = max(memory.held() - _bytes_of(outputs), 0)
            _core.add_cost_of_block(self._core, self._name, _bytes_of((args, kwargs)), kept, time.perf_counter() - start)
        return outputs


def _recomputing(forward, name, core):
    """`core`: of the engine whose budget chooses, or None if the module is always recomputed."""

    @functools.wraps(forward)
    def run(*args, **kwargs):
        if not torch.is_grad_enabled() or (core is not None and not _core.recomputes_block(core, name)):
            return forward(*args, **kwargs)
        if core is None or not _core.measures_blocks(core):
            return torch.utils.checkpoint.checkpoint(forward, *args, use_reentrant=False, **kwargs)
        with torch.utils.checkpoint.set_checkpoint_early_stop(False):  # which would end a recomputation before its outputs
            return torch.utils.checkpoint.checkpoint(_Measured(core, name, forward), *args, use_reentrant=False, **kwargs)

    return run


def recompute(model, config, rank, core=None):
    """Has the modules that zerorun.recompute chooses recomputed in backward, until the returned function is called. `config`: the
    engine's. `core`: of the engine; None for a plan. Throws UserError."""
    if config["moves_activations"] and rank == 0:
        log.warning("partition_activations, contiguous_memory_optimization and cpu_checkpointing have no effect in Python: "
                    "torch.utils.checkpoint keeps a block's inputs where they are")
    settings = config["recompute"]
    chosen = _chosen(model, settings, core) if settings else []
    before = [(module, module.__dict__.get("forward")) for _, module in chosen]
    for name, module in chosen:
        module.forward = _recomputing(module.forward, name, core if settings["budget"] else None)

    def stop():
        while before:
            module, forward = before.pop()
            if forward is None:
                del module.forward
            else:
                module.forward = forward

    return stop
