"""Programs written for DeepSpeed train under the engine as plain torch does, on two ranks."""

import json
import shutil

import pytest
from launch import run
from plain_torch import train


@pytest.mark.parametrize("precision, allowed", [("fp32", 1e-5), ("bf16", 3e-2)])
def test_a_program_written_for_deepspeed(precision, allowed, tmp_path):
    run("plain_loops.py", precision, tmp_path, ranks=2)
    expected, lr = train()
    for stage in range(4):
        found = json.loads((tmp_path / f"{stage}.json").read_text())
        assert found["lr"] == lr
        for rank in range(2):
            assert found["losses"][rank] == pytest.approx(expected[rank], rel=allowed), f"stage {stage}"


@pytest.mark.parametrize("launcher", ["torchrun", "mpirun"])
def test_under_other_launchers(launcher, tmp_path):
    if launcher == "mpirun" and not shutil.which("mpirun"):
        pytest.skip("there is no mpirun: scripts/setup --cluster installs OpenMPI")
    out = tmp_path / "out.json"
    run("plain_loop.py", 3, "fp32", out, ranks=2, kind=launcher)
    assert json.loads(out.read_text())["losses"][1] == pytest.approx(train()[0][1], rel=1e-5)
