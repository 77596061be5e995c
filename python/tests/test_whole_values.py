"""Gradients and state_dicts as whole tensors, where ranks share memory and where they do not."""

import pytest
from launch import run


@pytest.mark.parametrize("comm", ["shm", "gloo"])
def test_whole_values(comm, tmp_path):
    run("whole_values.py", tmp_path, ranks=2, ZERORUN_COMM=comm)
