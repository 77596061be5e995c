"""Tests docs/python.md: its program runs unchanged, and every name in its table exists."""

import re

import zerorun
from launch import SOURCE, run
from small import make

PAGE = (SOURCE / "docs/python.md").read_text()


def test_the_program_runs(tmp_path):
    program, tail = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)
    file = tmp_path / "train.py"
    file.write_text(program.replace('"checkpoints"', repr(str(tmp_path / "checkpoints"))) + tail)
    run(file, ranks=2)
    assert (tmp_path / "checkpoints/latest").exists()


def test_what_it_names_is_there():
    rows = dict(re.findall(r"^\| (?:`?)([a-z_]+)(?:`?) \| (.*) \|$", PAGE, re.MULTILINE))
    engine = make()
    owners = {"zerorun": zerorun, "engine": engine, "optimizer": engine.optimizer, "zero": zerorun.zero,
              "utils": zerorun.utils, "checkpointing": zerorun.checkpointing}
    for owner, value in owners.items():
        for name in re.findall(r"`([A-Za-z_0-9.]+)`", rows[owner]):
            found = value
            for part in name.split("."):
                found = getattr(found, part)
