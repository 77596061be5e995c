"""Ctrl-C at any time of training, in scopes, and destroy() while the engine is in use."""

import threading
import time

import pytest
import torch
from launch import run_several
from small import loss_of, make, step
from zerorun import UserError


def test_ctrl_c_at_any_time():
    run_several([("interrupted.py", "one"), ("interrupted_scopes.py", "with"), ("interrupted_scopes.py", "around")], ranks=1)


@pytest.mark.parametrize("stage", [1, 3])
def test_destroy_in_a_backward(stage):
    engine = make(stage)
    errors = []

    class Ends(torch.autograd.Function):
        @staticmethod
        def forward(context, value):
            return value.clone()

        @staticmethod
        def backward(context, gradient):
            try:
                engine.destroy()
            except UserError as error:
                errors.append(str(error))
            return gradient

    engine.backward(Ends.apply(loss_of(engine)))
    assert len(errors) == 1 and "while a call of the engine runs" in errors[0]
    engine.step()
    step(engine)
    engine.destroy()
    with pytest.raises(UserError, match="destroyed"):
        engine.step()


def test_destroy_while_another_thread_trains():
    for _ in range(10):
        engine = make(1)
        started, refused = threading.Event(), []

        def train():
            try:
                while True:
                    step(engine)
                    started.set()
            except UserError as error:
                refused.append(str(error))

        thread = threading.Thread(target=train)
        thread.start()
        started.wait()
        end = time.monotonic() + 60
        while not engine.is_destroyed and time.monotonic() < end:
            try:
                engine.destroy()
            except UserError as error:
                assert "while a call of the engine runs" in str(error)
                time.sleep(0.0001)
        thread.join(60)
        assert not thread.is_alive() and refused
