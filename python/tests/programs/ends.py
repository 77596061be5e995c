"""The process group that init_distributed() has made ends before the interpreter does."""

import atexit

import torch

import zerorun

atexit.register(lambda: print("initialized at the end:", torch.distributed.is_initialized(), flush=True))
zerorun.init_distributed()
