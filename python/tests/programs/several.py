"""Runs a program once for each list of arguments, in one process: several.py PROGRAM ARGUMENT... [-- ARGUMENT...]..."""

import runpy
import sys

program, *rest = sys.argv[1:]
lists = [[]]
for word in rest:
    if word == "--":
        lists.append([])
    else:
        lists[-1].append(word)
for arguments in lists:
    sys.argv = [program, *arguments]
    runpy.run_path(program, run_name="__main__")
