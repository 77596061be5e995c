"""A checkpoint that fails behind the program's back: the disk takes no more than 100 kB a file. failed_save.py FOLDER"""

import resource
import sys

import torch

import zerorun
from small import config

engine, *_ = zerorun.initialize(model=torch.nn.Linear(512, 512), config=config(1))
resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, 100_000))
engine.save_checkpoint(sys.argv[1], asynchronous=True)
print("the program ends without an error of its own", flush=True)
