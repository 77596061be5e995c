"""One rank alone saves a parameter in its client_state, so the others gather nothing: that rank's error is the one of the
gather, not of a later collective. lone_save.py STAGE"""

import sys
import tempfile

import zerorun
from small import make, step

engine = make(int(sys.argv[1]))
step(engine)
alone = engine.global_rank == 0
state = {"weight": engine.module[0].weight} if alone else None
try:
    engine.save_checkpoint(tempfile.mkdtemp(), client_state=state)
    raise AssertionError("saved")
except RuntimeError as error:  # an operator's, or on the other rank CommError, which is one
    assert "all_gather of parameters" in str(error) or not alone, error
    assert isinstance(error, zerorun.CommError) or alone, error
print("PASS", flush=True)
