"""torch.compile on modules, functions and the whole model. Compiling with g++ takes inductor longer than all else here; the backend that reads
addresses does what its kernels do."""

import shutil

import pytest
from launch import ALL, run


@pytest.mark.parametrize("comm, cases", [("shm", ["1,3"]), ("gloo", ["3"])] if ALL else [
    ("shm", ["1,3", "the model,a function,a module later"]), ("gloo", ["3", "a module,a wrapped module,forward,engine.compile"])])
def test_what_is_compiled_may_read_addresses(comm, cases):
    run("compiled.py", "reader", *cases, ranks=2, ZERORUN_COMM=comm)


@pytest.mark.skipif(not ALL, reason="scripts/test_python --all")
def test_inductor(tmp_path):
    if not shutil.which("g++"):
        pytest.skip("inductor needs g++ for its kernels: apt-get install g++")
    run("compiled.py", "inductor", "3", "a module,a function", ranks=1, TORCHINDUCTOR_CACHE_DIR=str(tmp_path))
