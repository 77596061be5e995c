"""zerorun.recompute for Python modules: the forwards of chosen modules run under torch.utils.checkpoint."""

import functools
import logging

import torch.utils.checkpoint

from . import _core
from .errors import UserError

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


def _chosen(model, settings):
    """The modules to recompute, by name. Throws UserError if there are none."""
    if settings["nvme_path"]:
        raise UserError("zerorun.recompute.nvme_path: torch.utils.checkpoint keeps the inputs of a Python model's modules in memory: "
                        "leave the key out")
    if settings["patterns"]:
        named = {name: module for name, module in model.named_modules()}
        for pattern in settings["patterns"]:
            if not any(_core.matches_name(pattern, name) for name in named):
                raise UserError(f"zerorun.recompute.patterns: {pattern!r} names no module of the model; * stands for one part of "
                                "a name, as in 'model.layers.*.mlp'")
        return [module for name, module in named.items() if any(_core.matches_name(p, name) for p in settings["patterns"])]
    if not settings["every"]:
        raise UserError("zerorun.recompute.budget: expected \"every\" or \"patterns\", which choose modules of a Python model")
    items = _items_of_lists(model)
    if not items:
        raise UserError("zerorun.recompute.every: the model has no torch.nn.ModuleList or Sequential, whose items it counts: "
                        "write \"patterns\" with the names of modules")
    return [module for _, module in items[::settings["every"]]]


def _recomputing(forward):
    @functools.wraps(forward)
    def run(*args, **kwargs):
        if not torch.is_grad_enabled():
            return forward(*args, **kwargs)
        return torch.utils.checkpoint.checkpoint(forward, *args, use_reentrant=False, **kwargs)

    return run


def recompute(model, config, rank):
    """Has the modules that zerorun.recompute chooses recomputed in backward, until the returned function is called. `config`: the
    engine's. Throws UserError."""
    if config["moves_activations"] and rank == 0:
        log.warning("partition_activations and cpu_checkpointing have no effect in Python: torch.utils.checkpoint keeps a block's "
                    "inputs where they are")
    chosen = _chosen(model, config["recompute"]) if config["recompute"] else []
    before = [(module, module.__dict__.get("forward")) for module in chosen]
    for module, _ in before:
        module.forward = _recomputing(module.forward)

    def stop():
        while before:
            module, forward = before.pop()
            if forward is None:
                del module.forward
            else:
                module.forward = forward

    return stop
