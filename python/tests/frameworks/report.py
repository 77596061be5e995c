"""What a program of this folder writes at its end: its losses and what trained it."""

import inspect
import json
import math
import pathlib
import sys

import torch


def engine_of(engine):
    """The class of the engine, its file and version, the folder of the package deepspeed, and the files of modules of that name
    that are elsewhere."""
    if engine is None:
        return None
    import deepspeed

    kind, package = type(engine), pathlib.Path(deepspeed.__file__).resolve().parent
    files = {getattr(module, "__file__", None) for name, module in list(sys.modules.items()) if name.split(".")[0] == "deepspeed"}
    elsewhere = [file for file in files - {None} if not pathlib.Path(file).resolve().is_relative_to(package)]
    return {"class": f"{kind.__module__}.{kind.__name__}", "file": inspect.getfile(kind), "version": deepspeed.__version__,
            "package": str(package), "elsewhere": sorted(elsewhere)}


def write(out, engine, losses, **more):
    """On rank 0, from all ranks: `losses` of each rank, and what else rank 0 has found."""
    every = [None] * torch.distributed.get_world_size()
    torch.distributed.all_gather_object(every, losses)
    if torch.distributed.get_rank() == 0:
        pathlib.Path(out).write_text(json.dumps({"engine": engine_of(engine), "losses": every, **more}))
    if engine is None:
        torch.distributed.destroy_process_group()  # else a thread of Gloo may abort the process at its end


def warmup_decay(optimizer, steps, warmup):
    """DeepSpeed's WarmupDecayLR for plain torch. It is one step behind: the first two optimizer steps have the rate 0."""
    return torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: 0.0 if step == 0 else min(
        math.log(step) / math.log(warmup), (steps - step + 1) / (steps - warmup)))
