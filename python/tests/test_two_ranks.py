"""Programs of public reports on two ranks, each compared with plain torch by the program itself."""

import pytest
import torch
from launch import run

import zerorun
from zerorun.module_notes import explained_errors

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


@pytest.mark.parametrize("comm", ["shm", "gloo"])
def test_a_backward_that_raises_on_one_rank(comm):
    run("thrown_on_one_rank.py", ranks=2, ZERORUN_COMM=comm)


def test_only_gathers_of_parameters_name_leaf_modules():
    for collective, names in (("all_gather of parameters of bucket 1", True), ("reduce_scatter of gradients of bucket 1", False)):
        with pytest.raises(zerorun.CommError) as error, explained_errors(torch.nn.Linear(1, 1)):
            raise zerorun.CommError(f"ranks disagree on the next collective: rank 0 is in {collective}, rank 1 in barrier")
        assert ("set_z3_leaf_modules" in str(error.value)) == names
