"""Around the training loop: notebooks, spawned workers, Ctrl-C, and a failure that is noticed at the end."""

import re
import runpy

import pytest
from launch import PROGRAMS, run


def test_a_notebook():
    runpy.run_path(str(PROGRAMS / "notebook.py"))


def test_spawned_workers():
    run("spawned.py", ranks=1)


@pytest.mark.parametrize("where, ranks", [("backward", "0,1"), ("step", "1")])
def test_ctrl_c_on_two_ranks(where, ranks):
    """Ranks end at once, though others may wait for them. 130: the launcher's exit code for SIGINT."""
    output = run("interrupted.py", where, ranks, ranks=2, expect=130, timeout=100)
    waited = [float(seconds) for seconds in re.findall(r"ended after ([0-9.]+) s", output)]
    assert len(waited) >= len(ranks.split(",")) and max(waited) < 10, output


def test_an_exception_that_ends_the_program(tmp_path):
    output = run("exception.py", tmp_path, "raise", ranks=1, expect=1)
    assert "a step is wrong" in output and "waited for the checkpoint\ndestroyed after an exception" in output
    assert (tmp_path / "latest").exists()
    output = run("exception.py", tmp_path, "return", ranks=1)
    assert "destroyed\n" in output and "exception" not in output


def test_a_save_that_fails_at_the_end_sets_the_exit_code(tmp_path):
    output = run("failed_save.py", tmp_path, ranks=1, expect=1)
    assert "ends without an error of its own" in output and "File too large" in output
