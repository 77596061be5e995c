"""torch.compile on modules, functions and the whole model."""

import shutil

import pytest
from launch import run


@pytest.mark.parametrize("comm, stages", [("shm", "1,3"), ("gloo", "3")])
def test_what_is_compiled_may_read_addresses(comm, stages):
    run("compiled.py", "reader", stages, ranks=2, ZERORUN_COMM=comm)


def test_inductor(tmp_path):
    if not shutil.which("g++"):
        pytest.skip("inductor needs g++ for its kernels: apt-get install g++")
    run("compiled.py", "inductor", "3", "a module,a function", ranks=1, TORCHINDUCTOR_CACHE_DIR=str(tmp_path))
