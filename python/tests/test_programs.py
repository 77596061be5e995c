"""Programs written for DeepSpeed train under the engine as plain torch does, on two ranks."""

import json
import shutil

import pytest
from launch import run
from plain_torch import train


@pytest.mark.parametrize("precision, allowed", [("fp32", 1e-5), ("bf16", 3e-2)])
@pytest.mark.parametrize("stage", [0, 1, 2, 3])
def test_a_program_written_for_deepspeed(stage, precision, allowed, tmp_path):
    out = tmp_path / "out.json"
    run("plain_loop.py", stage, precision, out, ranks=2)
    found = json.loads(out.read_text())
    expected, lr = train()
    assert found["lr"] == lr
    for rank in range(2):
        assert found["losses"][rank] == pytest.approx(expected[rank], rel=allowed)


@pytest.mark.parametrize("launcher", ["torchrun", "mpirun"])
def test_under_other_launchers(launcher, tmp_path):
    if launcher == "mpirun" and not shutil.which("mpirun"):
        pytest.skip("there is no mpirun: scripts/setup --cluster installs OpenMPI")
    out = tmp_path / "out.json"
    run("plain_loop.py", 3, "fp32", out, ranks=2, kind=launcher)
    assert json.loads(out.read_text())["losses"][1] == pytest.approx(train()[0][1], rel=1e-5)
