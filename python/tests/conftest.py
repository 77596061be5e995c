import os
import pathlib
import sys

here = pathlib.Path(__file__).parent
sys.path[:0] = [str(here), str(here / "programs")]
os.environ["ZERORUN_DEVICE"] = "cpu"
