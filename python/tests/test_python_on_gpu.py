"""The programs that scripts/gpu_check runs on a GPU, on the CPU."""

import pytest
from launch import ALL, SOURCE, run

FOLDER = SOURCE / "tests" / "cuda"


def test_it_passes_on_the_cpu():
    kinds = ["plain", "checkpoint", "reentrant"] if ALL else ["checkpoint"]
    output = run(FOLDER / "python_on_gpu.py", "--device", "cpu", "--only", ",".join(kinds), ranks=1)
    assert output.splitlines()[-1] == f"{4 * len(kinds)} passed, 0 failed", output


@pytest.mark.skipif(not ALL, reason="ten starts of transformers; test_frameworks.py has a Trainer")
def test_a_trainer_program_passes_on_the_cpu():
    pytest.importorskip("accelerate")
    output = run(FOLDER / "trainer_on_gpu.py", "--device", "cpu", ranks=1, timeout=600)
    assert output.splitlines()[-1] == "10 passed, 0 failed", output
