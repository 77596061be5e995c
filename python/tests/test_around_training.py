"""What programs do around training: adapters that are merged, averages of weights, larger embeddings, several plugins, callbacks that
raise, ranks whose data end at different steps."""

import pytest
from launch import ALL, run

NAMES = ["adapters", "averages", "embeddings", "plugins", "callbacks"]


@pytest.mark.parametrize("stage", [0, 1, 2, 3] if ALL else [3])
def test_around_training(stage, tmp_path):
    pytest.importorskip("peft", reason="the frameworks are installed for Python 3.11 and newer")
    names = NAMES if ALL else NAMES[:3]
    output = run("around_training.py", stage, tmp_path, *names, kind="zerorun as deepspeed", HF_HUB_OFFLINE="1")
    for name in names:
        assert output.count(f"has done {name}") == 2


@pytest.mark.parametrize("comm", ["shm", "gloo"] if ALL else ["shm"])
@pytest.mark.parametrize("stage", [0, 2, 3] if ALL else [3])
def test_ranks_whose_data_end_at_different_steps(stage, comm, tmp_path):
    """A clear error, not a wait without end."""
    output = run("uneven_loaders.py", stage, tmp_path, options=["--comm", comm], expect=None, ZERORUN_TIMEOUT="20", timeout=100)
    assert "ranks disagree" in output, output


@pytest.mark.skipif(not ALL, reason="scripts/test_python --all")
@pytest.mark.parametrize("comm", ["shm", "gloo"])
def test_ranks_that_use_different_experts(comm):
    pytest.importorskip("transformers")
    assert run("sparse_blocks.py", options=["--comm", comm]).count("done") == 2
