"""Runs programs one after the other in one process: several.py PROGRAM ARGUMENT... [-- PROGRAM ARGUMENT...]..."""

import runpy
import sys

lists = [[]]
for word in sys.argv[1:]:
    if word == "--":
        lists.append([])
    else:
        lists[-1].append(word)
for arguments in lists:
    sys.argv = arguments
    runpy.run_path(arguments[0], run_name="__main__")
