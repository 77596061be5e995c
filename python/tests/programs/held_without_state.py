"""Saves a client_state in step 2 and does not give load_newest() a function that returns it; killed in step 4. Argument: FOLDER"""

import os
import signal
import sys

from small import make, step

engine = make()
found = engine.load_newest(sys.argv[1] + "/saves")
print("from", found and found[0], flush=True)
while engine.global_steps < 5:
    if engine.global_steps == 3 and found is None and engine.global_rank == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    step(engine)
    if engine.global_steps == 2:
        engine.save_checkpoint(sys.argv[1] + "/saves", client_state={"of": "the program"})
