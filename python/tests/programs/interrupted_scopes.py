"""Ctrl-C at random moments in scopes of gathered parameters: the session goes on after engine.zero_grad()."""

import random
import signal
import sys

import torch
import zerorun
from small import make, step

kind = sys.argv[1]
engine = make(3)
if kind == "around":
    engine.gather_around(torch.nn.Linear)
parameters = list(engine.module.parameters())
kept = []  # a notebook keeps the traceback, and with it the frames


def work():
    while True:
        if kind == "around":
            step(engine)
        else:
            with zerorun.zero.GatheredParameters(parameters):
                parameters[0].sum()


signal.signal(signal.SIGALRM, signal.default_int_handler)  # raises KeyboardInterrupt as SIGINT does
random.seed(3)
for _ in range(100):
    try:
        signal.setitimer(signal.ITIMER_REAL, random.uniform(0.001, 0.02))
        work()
    except KeyboardInterrupt as error:
        kept.append(error)
    except zerorun.UserError as error:
        sys.exit(f"the session has ended: {error}")
    engine.zero_grad()
    step(engine)
scope = zerorun.zero.GatheredParameters(parameters)
with scope:
    with scope:
        parameters[0].sum()
step(engine)
