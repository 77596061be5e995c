"""The program that scripts/gpu_check runs on a GPU, on the CPU."""

from launch import SOURCE, run


def test_it_passes_on_the_cpu():
    program = SOURCE / "tests" / "cuda" / "python_on_gpu.py"
    output = run(program, "--device", "cpu", "--only", "plain,checkpoint,reentrant", ranks=1)
    assert output.splitlines()[-1] == "12 passed, 0 failed", output
