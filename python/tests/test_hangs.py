"""The launcher's report about a rank that makes no progress while others wait."""

from launch import run


def test_a_rank_that_hangs_in_its_data_loader_is_named_with_its_python_lines():
    output = run("hanging.py", expect=1, options=["--hung_after", "2"])
    assert "zerorun: rank 1 hangs: no progress for 2." in output
    assert "in its own code between calls of the engine, in step 3, while rank 0 waits in " in output
    lines = output[output.index("its stack, the innermost call first:"):].splitlines()
    assert 'hanging.py", line ' in lines[2] and lines[2].endswith(" in read_sample"), lines[:12]
    assert any("torch/utils/data" in line for line in lines), lines
    assert any("zerorun: rank 1 hung: no progress" in line for line in lines), lines
