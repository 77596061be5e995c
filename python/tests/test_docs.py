"""Tests docs/python.md: its program runs unchanged, and every name in its table exists."""

import functools
import importlib
import re
import sys

import zerorun
from launch import SOURCE, run
from small import make
from zerorun import as_deepspeed

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


def test_the_table_of_deepspeed_names_has_those_that_frameworks_take():
    section = PAGE.split("## A DeepSpeed program unchanged")[1].split("\n## ")[0]
    documented = set(re.findall(r"`([A-Za-z_0-9.]+)`", section))
    recorded = (SOURCE / "python/tests/data/framework_names.tsv").read_text().splitlines()
    names = {line.split("\t")[0] for line in recorded if not line.startswith("#")}
    missing = {name for name in names if not any(
        name.endswith("." + each) or name == each or f".{each}." in name + "." for each in documented if each != "deepspeed")}
    assert missing <= {"deepspeed", "deepspeed.runtime", "deepspeed.utils", "deepspeed.utils.groups"}, missing


def test_the_table_of_deepspeed_names_is_right():
    sys.path.insert(0, str(as_deepspeed.FOLDER))
    try:
        rows = re.findall(r"^\| (`.*) \| (supported|no effect|refused)[^|]* \|$", PAGE, re.MULTILINE)
        assert len(rows) > 15
        for cell, verdict in rows:
            for part in cell.split("; "):
                modules, _, names = part.partition(": ")
                for module in re.findall(r"`([a-z_0-9.]+)`", modules) if names else []:
                    module = module if module == "deepspeed" else f"deepspeed.{module}"
                    owner = find_module(module)
                    for name in re.findall(r"`([A-Za-z_0-9.]+)`", names):
                        check(functools.reduce(getattr, name.split("."), owner), verdict, f"{module}.{name}")
    finally:
        sys.path.remove(str(as_deepspeed.FOLDER))


def find_module(name):
    before, _, own = name.rpartition(".")
    if before == "deepspeed":
        return getattr(importlib.import_module(before), own)  # deepspeed.zero is an attribute only
    return importlib.import_module(name)


def check(value, verdict, name):
    is_refused = type(value).__name__ == "_Refused"
    assert is_refused == (verdict == "refused") or verdict == "refused" and not isinstance(value, type), name
