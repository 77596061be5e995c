"""Ctrl-C anywhere in training: an engine goes on after zero_grad() on one rank, and ends without waiting on several."""

import itertools
import os
import signal
import sys
import time

import torch

import zerorun
from small import config

KIND = sys.argv[1]


def make(stage):
    torch.manual_seed(1)
    model = torch.nn.Sequential(*[torch.nn.Linear(64, 64) for _ in range(8)])
    return zerorun.initialize(model=model, config=config(stage))[0]


def step(engine):
    engine.backward(engine(torch.ones(2, 64)).pow(2).mean())
    engine.step()


def interrupts_at_any_time():
    """Signals come after 0 to 5 ms: in forward, in backward, in step() and between them."""
    signal.signal(signal.SIGALRM, signal.default_int_handler)
    for stage in (0, 3):
        engine = make(stage)
        for delay in range(1, 40):
            try:
                signal.setitimer(signal.ITIMER_REAL, delay * 1.2e-4)
                for _ in itertools.count():
                    step(engine)
            except KeyboardInterrupt:
                engine.zero_grad()
        step(engine)
        engine.destroy()


def interrupts_on(ranks, where):
    """In the third step on these ranks: in backward, or before step(), in which the others then wait."""
    signal.signal(signal.SIGINT, signal.default_int_handler)  # it is ignored if the tests run in a shell's background
    engine = make(3)
    for _ in range(2):
        step(engine)
    rank = engine.global_rank

    def interrupt(*_):
        if rank in ranks:
            signal.raise_signal(signal.SIGINT)

    if where == "backward":
        engine.module[4].weight.register_hook(interrupt)
    begin = time.monotonic()
    try:
        engine.backward(engine(torch.ones(2, 64)).pow(2).mean())
        interrupt()
        engine.step()
    finally:
        engine.destroy()
        print(f"rank {rank} ended after {time.monotonic() - begin:.1f} s", flush=True)


if KIND == "one":
    interrupts_at_any_time()
else:
    interrupts_on([int(rank) for rank in sys.argv[2].split(",")], KIND)
    os._exit(9)  # not reached: every rank raises
