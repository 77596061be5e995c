"""Gradients and state_dicts as whole tensors, where ranks share memory and where they do not."""

import pytest
from launch import ALL, run


@pytest.mark.parametrize("comm", ["shm", "gloo"])
def test_whole_values(comm, tmp_path):
    stages = "0,1,2,3" if ALL or comm == "shm" else "1,3"
    run("whole_values.py", tmp_path, stages, ranks=2, ZERORUN_COMM=comm)
