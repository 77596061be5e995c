"""Operators, transforms and modes of torch on parameters that are gathered when they are used; what needs no memory."""

import io
import pickle

import pytest
import torch
import zerorun
from launch import ALL, run
from small import make, net


# Where ranks share memory, a parameter may be read that was not gathered: so every change runs over Gloo.
@pytest.mark.parametrize("comm, stages", [("gloo", "3,0"), ("shm", "3,0")] if ALL else [("gloo", "3,0")])
def test_operators_defined_later_transforms_and_modes(comm, stages):
    run("operators.py", stages, ranks=2, ZERORUN_COMM=comm)


def test_parameters_look_as_in_plain_torch():
    plain, engine = net(), make(3)
    for mine, theirs in zip(engine.module.parameters(), plain.parameters()):
        assert isinstance(mine, torch.nn.Parameter) and mine.is_leaf
        assert mine.type() == theirs.type() and mine.stride() == theirs.stride()
        for make_one in (lambda p: p.new_zeros(2), lambda p: p.new_full((2,), 1.5), torch.zeros_like, torch.ones_like):
            made = make_one(mine)
            assert not zerorun._core.lies_in_engine(made) and torch.equal(made, make_one(theirs))
        with zerorun.zero.GatheredParameters([mine]):
            assert repr(mine) == repr(theirs)
    assert str(engine.module) == str(plain)


def test_reading_without_an_operator_is_refused():
    engine = make(3)
    weight = engine.module[0].weight
    for action in (lambda: weight.data_ptr(), lambda: weight.detach().numpy(), lambda: torch.save(weight, io.BytesIO()),
                   lambda: pickle.dumps(weight), lambda: repr(weight)):
        with pytest.raises((zerorun.UserError, RuntimeError), match="not gathered now"):
            action()
    with zerorun.zero.GatheredParameters([weight]):
        copy = pickle.loads(pickle.dumps(weight))
    assert torch.equal(copy, net()[0].weight) and not zerorun._core.lies_in_engine(copy)
