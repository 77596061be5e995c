"""What programs do around training: a rank that Accelerate takes for the only one, a model that all ranks save, adapters that are merged, averages of weights, larger embeddings, several plugins, callbacks that
raise, ranks whose data end at different steps."""

import importlib.metadata

import pytest
from launch import ALL, run, run_several

NAMES = ["adapters", "averages", "embeddings", "plugins", "callbacks"]


@pytest.mark.parametrize("stage", [0, 1, 2, 3] if ALL else [3])
def test_around_training(stage, tmp_path):
    pytest.importorskip("peft", reason="the frameworks are installed for Python 3.11 and newer")
    names = NAMES if ALL else NAMES[:3]
    before = [("alone_in_accelerate.py",), ("saved_by_all.py", tmp_path, "shared")]
    output = run_several([*(before if stage == 3 else []), ("around_training.py", stage, tmp_path, *names)],
                         kind="zerorun as deepspeed", HF_HUB_OFFLINE="1")
    for name in names:
        assert output.count(f"has done {name}") == 2
    if stage == 3:
        assert output.count("refused: initialize(): Accelerate takes this rank for the only one, but there are 2") == 2
        assert output.count("engine: zerorun.engine 2") == 2  # with the name of the backend
        first, second = ((tmp_path / rank / "model.safetensors") for rank in "01")
        assert first.stat().st_size > 40_000
        if int(importlib.metadata.version("transformers").split(".")[0]) < 5:  # later ones let only rank 0 write
            assert first.read_bytes() == second.read_bytes()


@pytest.mark.skipif(not ALL, reason="scripts/test_python --all")
def test_all_ranks_save_a_model_without_shared_memory(tmp_path):
    run("saved_by_all.py", tmp_path, "alone", kind="zerorun as deepspeed", options=["--comm", "gloo"])


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
