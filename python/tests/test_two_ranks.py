"""Programs of public reports on two ranks, each compared with plain torch by the program itself."""

import pytest
from launch import run

CASES = {
    "gan.py": [("1", "module"), ("2", "optimizer"), ("3", "module"), ("3", "frozen")],
    "lagging_folder.py": [("1",), ("3",)],
    "refused_save.py": [("2",), ("3",)],
    "resized_embeddings.py": [("2",), ("3",)],
}


@pytest.mark.parametrize("program", CASES)
def test_a_program_of_a_public_report(program):
    words = []
    for number, case in enumerate(CASES[program]):
        words += ["--"] * (number > 0) + list(case)
    output = run("several.py", f"{__file__.rpartition('/')[0]}/programs/{program}", *words)
    assert output.count("PASS") == 2 * len(CASES[program])


def test_a_parameter_that_one_rank_alone_saves():
    assert run("lone_save.py", "3").count("PASS") == 2
