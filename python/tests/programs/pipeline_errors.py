"""A layer that raises on one stage ends the window on all ranks, within seconds; what one stage returns does not fit; the layers of
other stages are dropped, and so is an engine."""
import gc
import sys
import time
import weakref

import torch

import zerorun
from zerorun.pipe import LayerSpec, PipelineModule

Linear = torch.nn.Linear


class Raising(torch.nn.Module):
    def forward(self, x):
        raise ZeroDivisionError("a division of the program")


class RaisingBackward(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return x.clone()

    @staticmethod
    def backward(ctx, gradient):
        raise KeyError("a key of the program")


def make(layers, stage=0, **more):
    net = PipelineModule(layers, num_stages=2, loss_fn=lambda outputs, labels: (outputs - labels).square().mean(),
                         partition_method="uniform", **more)
    return zerorun.initialize(model=net, config={
        "train_micro_batch_size_per_gpu": 2, "gradient_accumulation_steps": 2, "optimizer": {"type": "SGD", "params": {"lr": 0.1}},
        "zero_optimization": {"stage": stage, "stage3_param_persistence_threshold": 0}})[0]


def data():
    while True:
        yield torch.ones(2, 4), torch.ones(2, 4)


def raises(layers, owner, kind, text, stage=0):
    """One rank gets the program's error, the other one its text."""
    engine = make(layers, stage)
    begin = time.monotonic()
    try:
        engine.train_batch(data())
    except Exception as error:  # noqa: BLE001
        assert time.monotonic() - begin < 20
        expected = kind if engine.stage_id == owner else zerorun.CommError
        assert type(error) is expected and text in str(error), (engine.stage_id, repr(error))
    else:
        raise AssertionError("train_batch() has not raised")
    try:
        engine.train_batch(data())
    except zerorun.UserError as error:
        assert "that failed" in str(error) and "end the run" in str(error), error
    except zerorun.CommError as error:
        assert text in str(error), error
    else:
        raise AssertionError("train_batch() has not raised again")


def lifetimes():
    made = []

    class Noted(Linear):
        def __init__(self):
            super().__init__(4, 4)
            made.append(weakref.ref(self))

    engine = make([LayerSpec(Noted), LayerSpec(Noted)], stage=3)
    net = weakref.ref(engine.module)
    net().engines = [engine]  # a cycle
    gc.collect()
    assert [layer() is not None for layer in made] == [engine.stage_id == 0, engine.stage_id == 1]
    assert [name for name, _ in engine.module.named_parameters()] == [f"{engine.stage_id}.weight", f"{engine.stage_id}.bias"]
    engine.train_batch(data())
    core = weakref.ref(engine)
    del engine
    gc.collect()
    assert core() is None and net() is None and made[0]() is None and made[1]() is None


zerorun.init_distributed()
if sys.argv[1] == "lifetimes":
    lifetimes()
elif sys.argv[1] == "uncaught":
    make([LayerSpec(Linear, 4, 4), LayerSpec(Raising)]).train_batch(data())
elif sys.argv[1] == "layer":
    raises([LayerSpec(Linear, 4, 4), LayerSpec(Raising)], 1, ZeroDivisionError, "a division of the program")
elif sys.argv[1] == "first":
    raises([LayerSpec(Raising), LayerSpec(Linear, 4, 4)], 0, ZeroDivisionError, "a division of the program", stage=3)
elif sys.argv[1] == "backward":
    raises([LayerSpec(Linear, 4, 4), RaisingBackward.apply, LayerSpec(Linear, 4, 4), LayerSpec(Linear, 4, 4)], 0, KeyError,
           "a key of the program", stage=2)
elif sys.argv[1] == "returned":
    raises([LayerSpec(Linear, 4, 4), lambda x: (x,), lambda x: x, LayerSpec(Linear, 4, 4)], 0, zerorun.UserError,
           "layer 1 (<lambda>), the last one of pipeline stage 0, must return a tensor or a tuple of several tensors")
elif sys.argv[1] == "loss":
    raises([LayerSpec(Linear, 4, 4), lambda x: [x]], 1, TypeError, "unsupported operand")
print("PASS", flush=True)
