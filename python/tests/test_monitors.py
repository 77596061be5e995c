"""Monitors that are Python packages, and what the config's monitors write for a Python program."""

import logging
import sys

import pytest
import torch
import zerorun
from launch import run
from small import make, step


def test_two_ranks_with_packages(tmp_path):
    output = run("monitors.py", tmp_path, ranks=2)
    assert "as expected" in output and "comet: RuntimeError: the server is gone: training goes on" in output, output
    assert output.count("the server is gone") == 1 and "hidden-word" not in output
    assert "collectives of rank 0 in this run" in output


def test_a_live_line(capfd):
    engine = make(steps_per_print=2)
    print("before")
    with engine.live_line(steps=4, tokens_per_step=100) as line:
        for number in range(4):
            step(engine)
            line.show(torch.tensor(0.5 + number), lr=0.1)
    engine.destroy()
    shown = capfd.readouterr().out.splitlines()
    assert [text[:28] for text in shown] == ["before", "step 2/4  loss 1.5000  ETA 0", "step 4/4  loss 3.5000  ETA 0"], shown
    assert "tokens/s" in shown[1] and "GFLOP/s" in shown[2]


def test_a_live_line_ends_with_its_engine(capfd):
    engine = make(steps_per_print=1)
    first, line = engine.live_line(), engine.live_line()
    with pytest.raises(zerorun.UserError, match="after end"):
        first.show(1)
    step(engine)
    line.show(1)
    engine.destroy()
    with pytest.raises(zerorun.UserError, match="the engine was destroyed"):
        line.show(1)
    assert "samples/s" in capfd.readouterr().out


def test_a_package_that_is_missing(caplog, monkeypatch):
    monkeypatch.setitem(sys.modules, "wandb", None)  # as if it were not installed
    with caplog.at_level(logging.WARNING):
        engine = make(wandb={"enabled": True})
        step(engine)
        engine.destroy()
    assert "wandb.enabled: nothing is written to it" in caplog.text and "pip install wandb" in caplog.text
