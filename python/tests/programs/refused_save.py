"""What one rank alone cannot save is refused on all ranks, and training goes on; parameters of the engine are gathered.
refused_save.py STAGE"""

import os
import sys
import tempfile

import torch
import torch.distributed as dist

import zerorun
from small import make, step

engine = make(int(sys.argv[1]))
step(engine)
folders = [tempfile.mkdtemp() if engine.global_rank == 0 else None]
dist.broadcast_object_list(folders)
for rank in range(2):
    try:
        engine.save_checkpoint(folders[0], client_state={"args": object()} if engine.global_rank == rank else None)
        raise AssertionError("an object was saved")
    except zerorun.UserError as error:
        assert "client_state['args']" in str(error), error
    step(engine)
engine.save_checkpoint(folders[0], tag=f"of_rank_{engine.global_rank}")
assert engine.load_checkpoint(folders[0])[0] == os.path.join(folders[0], "of_rank_0") and "of_rank_1" not in os.listdir(folders[0])
strict = make(int(sys.argv[1]), checkpoint={"tag_validation": "Fail"})
try:
    strict.save_checkpoint(folders[0], tag=f"of_rank_{engine.global_rank}")
    raise ZeroDivisionError("ranks saved under two tags")
except AssertionError as error:  # as in DeepSpeed
    assert isinstance(error, zerorun.UserError) and "ranks save different checkpoints" in str(error), error
weight = engine.module[0].weight
engine.save_checkpoint(folders[0], client_state={"weight": weight})
with zerorun.zero.GatheredParameters([weight]):
    expected = weight.detach().clone()
assert torch.equal(engine.load_checkpoint(folders[0])[1]["weight"], expected)
print("PASS", flush=True)
