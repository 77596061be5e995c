"""The program that scripts/gpu_check runs on a GPU, on the CPU."""

from launch import ALL, SOURCE, run


def test_it_passes_on_the_cpu():
    program = SOURCE / "tests" / "cuda" / "python_on_gpu.py"
    kinds = ["plain", "checkpoint", "reentrant"] if ALL else ["checkpoint"]
    output = run(program, "--device", "cpu", "--only", ",".join(kinds), ranks=1)
    assert output.splitlines()[-1] == f"{4 * len(kinds)} passed, 0 failed", output
