"""Runs plain_loop.py as it stands, once for each stage: plain_loops.py PRECISION FOLDER"""

import pathlib
import runpy
import sys

precision, folder = sys.argv[1:]
for stage in range(4):
    sys.argv = ["plain_loop.py", str(stage), precision, f"{folder}/{stage}.json"]
    runpy.run_path(str(pathlib.Path(__file__).with_name("plain_loop.py")), run_name="__main__")
