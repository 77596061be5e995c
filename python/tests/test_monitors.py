"""Monitors that are Python packages, and what the config's monitors write for a Python program."""

import logging
import sys

from launch import run
from small import make, step


def test_two_ranks_with_packages(tmp_path):
    output = run("monitors.py", tmp_path, ranks=2)
    assert "as expected" in output and "comet: RuntimeError: the server is gone: training goes on" in output, output
    assert output.count("the server is gone") == 1 and "hidden-word" not in output
    assert "collectives of rank 0 in this run" in output


def test_a_package_that_is_missing(caplog, monkeypatch):
    monkeypatch.setitem(sys.modules, "wandb", None)  # as if it were not installed
    with caplog.at_level(logging.WARNING):
        engine = make(wandb={"enabled": True})
        step(engine)
        engine.destroy()
    assert "wandb.enabled: nothing is written to it" in caplog.text and "pip install wandb" in caplog.text
