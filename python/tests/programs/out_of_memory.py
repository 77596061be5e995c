"""Trains a step; then one rank wants more memory than there is, and the others wait for it."""

import os

import torch
from small import make, step

engine = make(2)
step(engine)
if os.environ["RANK"] == "1":
    torch.empty(2**50)
step(engine)
