"""Runs programs of this folder one after the other in the same ranks, as loading the frameworks takes longer than most of them:
together.py PROGRAM ARGUMENT... [-- PROGRAM ARGUMENT...]... After each it drops what Accelerate and transformers keep of a program, and after
the first the variables of `accelerate launch`."""

import os
import runpy
import sys

import transformers
from accelerate.state import AcceleratorState, GradientState

lists = [[]]
for word in sys.argv[1:]:
    if word == "--":
        lists.append([])
    else:
        lists[-1].append(word)
variables = {name: value for name, value in os.environ.items() if not name.startswith("ACCELERATE_")}
for arguments in lists:
    sys.argv = arguments
    runpy.run_path(arguments[0], run_name="__main__")
    AcceleratorState._reset_state(reset_partial_state=True)
    GradientState._reset_state()
    transformers.integrations.deepspeed.unset_hf_deepspeed_config()
    for name in set(os.environ) - set(variables):
        del os.environ[name]
    os.environ.update(variables)
