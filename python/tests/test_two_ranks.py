"""Programs of public reports on two ranks, each compared with plain torch by the program itself."""

import pytest
import torch
from launch import ALL, run, run_several

import zerorun
from zerorun.module_notes import explained_errors

KIND = "all" if ALL else "some"
# By transport: over shared memory no rank needs the others to read a parameter, so a save that needs them is tried over Gloo.
CASES = {
    "shm": [("gan.py", "1", "module"), ("gan.py", "2", "optimizer"), ("gan.py", "3", "module"), ("gan.py", "3", "frozen"),
            ("lagging_folder.py", "1"), ("lagging_folder.py", "3"), ("resized_embeddings.py", "2"), ("resized_embeddings.py", "3"),
            ("thrown_on_one_rank.py", KIND)],
    "gloo": [("refused_save.py", "2"), ("refused_save.py", "3"), ("thrown_on_one_rank.py", KIND), ("lone_save.py", "3")],
}


@pytest.mark.parametrize("comm", CASES)
def test_programs_of_public_reports(comm):
    output = run_several(CASES[comm], ZERORUN_COMM=comm, ZERORUN_TIMEOUT="20")  # the last one's ranks wait for each other
    assert output.count("PASS") == 2 * len(CASES[comm])


def test_without_numpy(tmp_path):
    assert run("without_numpy.py", tmp_path).count("without numpy: Numpy is not available") == 2


def test_only_gathers_of_parameters_name_leaf_modules():
    for collective, names in (("all_gather of parameters of bucket 1", True), ("reduce_scatter of gradients of bucket 1", False)):
        with pytest.raises(zerorun.CommError) as error, explained_errors(torch.nn.Linear(1, 1)):
            raise zerorun.CommError(f"ranks disagree on the next collective: rank 0 is in {collective}, rank 1 in barrier")
        assert ("set_z3_leaf_modules" in str(error.value)) == names
