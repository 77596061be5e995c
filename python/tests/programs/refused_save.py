"""What one rank alone cannot save is refused on all ranks, and training goes on. refused_save.py STAGE"""

import sys
import tempfile

import torch.distributed as dist

import zerorun
from small import loss_of, make, step

stage = int(sys.argv[1])
engine = make(stage)
step(engine)
folders = [tempfile.mkdtemp() if engine.global_rank == 0 else None]
dist.broadcast_object_list(folders)
client_state = {"args": object()}
try:
    engine.save_checkpoint(folders[0], client_state=client_state if engine.global_rank == 0 else None)
    raise AssertionError("an object was saved")
except zerorun.UserError as error:
    assert "client_state['args']" in str(error), error
step(engine)
# Only rank 0's is saved.
engine.save_checkpoint(folders[0], client_state={"step": 2} if engine.global_rank == 0 else client_state)
assert engine.load_checkpoint(folders[0])[1]["step"] == 2
print("PASS", flush=True)
