"""A child that a program forks after initialize(), as data loaders do, ends normally."""

import os
import signal
import sys
import time

import torch
import zerorun
from small import make, step

engine = make()
step(engine)
groups = [zerorun.comm.new_group([0])] if zerorun.comm.get_world_size() > 1 else []
child = os.fork()
if child == 0:
    sys.exit(7)
for _ in range(150):
    pid, status = os.waitpid(child, os.WNOHANG)
    if pid:
        break
    time.sleep(0.1)
else:
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    sys.exit("the child waits for ever")
assert os.waitstatus_to_exitcode(status) == 7
step(engine)
total = torch.ones(1)
zerorun.comm.all_reduce(total)
assert total.item() == zerorun.comm.get_world_size()
