"""Ranks that see different folders of checkpoints decide together whether there is one. Each rank has a working folder of its
own here, as if a shared file system showed a new file to one host only.
lagging_folder.py STAGE"""

import os
import sys
import tempfile

import zerorun
from small import make, step

engine = make(int(sys.argv[1]))
step(engine)
before = os.getcwd()
os.chdir(tempfile.mkdtemp())
for sees in (0, 1):  # the rank whose folder has a file `latest`
    folder = f"checkpoints-{sees}"
    if engine.global_rank == sees:
        os.mkdir(folder)
        with open(f"{folder}/latest", "w", encoding="utf-8") as file:
            file.write("global_step1")
    if sees == 1:
        assert engine.load_checkpoint(folder) == (None, None)
        continue
    try:
        engine.load_checkpoint(folder)
        raise AssertionError("a checkpoint that is not there was loaded")
    except zerorun.UserError as error:
        assert "global_step1" in str(error), error
step(engine)
os.chdir(before)
print("PASS", flush=True)
