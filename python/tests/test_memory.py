"""A lack of memory: the error says what memory is used for, and the launcher does so for a rank that does not."""

import pytest
import torch
from launch import run
from small import loss_of, make


def ask_for_too_much(*_):
    torch.empty(2**50)


@pytest.mark.parametrize("stage", [0, 3])
def test_the_error_of_a_forward_and_of_a_backward_has_the_report(stage):
    engine = make(stage)
    handle = engine.module.register_forward_pre_hook(ask_for_too_much)
    with pytest.raises(RuntimeError, match="can't allocate memory") as forward:
        loss_of(engine)
    handle.remove()
    loss = loss_of(engine)
    loss.register_hook(ask_for_too_much)
    with pytest.raises(RuntimeError, match="can't allocate memory") as backward:
        engine.backward(loss)
    for error in (forward, backward):
        assert str(error.value).count("memory of rank 0 in MiB") == 1
        assert "memory was wanted: for activations and the rest" in str(error.value)
        assert "what may help: " in str(error.value)
    engine.destroy()


def test_the_launcher_reports_the_rank_whose_memory_ran_out():
    output = run("out_of_memory.py", ranks=2, expect=None)
    assert output.count("memory of rank 1 in MiB, in step 2") == 1, output
    assert "memory of rank 0" not in output
    assert "optimizer states" in output and "zerorun: what may help: " in output
