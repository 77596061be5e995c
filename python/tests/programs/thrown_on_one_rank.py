"""A backward that raises on rank 0 only; all ranks drop, and train on like a run without it, at every stage: thrown_on_one_rank.py
all|some. Each two choices of the stage, the micro-step that raises, and who runs backward occur in `some`."""
import itertools
import sys

import torch

import zerorun

MICRO_STEPS = 4


class Throwing(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, throws):
        ctx.throws = throws
        return x.clone()

    @staticmethod
    def backward(ctx, gradient):
        if ctx.throws:
            raise ZeroDivisionError("of the program")
        return gradient, None


def make(stage):
    torch.manual_seed(1)
    model = torch.nn.Sequential(torch.nn.Linear(6, 6), torch.nn.Tanh(), torch.nn.Linear(6, 6))
    config = {"train_micro_batch_size_per_gpu": 1, "gradient_accumulation_steps": MICRO_STEPS,
              "optimizer": {"type": "SGD", "params": {"lr": 0.1, "momentum": 0.9}},
              "zero_optimization": {"stage": stage, "stage3_param_persistence_threshold": 0, "reduce_bucket_size": 60}}
    return zerorun.initialize(model=model, config=config)[0]


def loss_of(engine, sample, throws=False):
    x = torch.randn(3, 6, generator=torch.Generator().manual_seed(2 * sample + rank))
    hidden = Throwing.apply(engine.module[0](x), throws)
    return engine.module[2](torch.tanh(hidden)).square().mean()


def run(thrower, stage, before, plain):
    engine = make(stage)
    for sample in range(3 * MICRO_STEPS):
        if sample == MICRO_STEPS + before:
            loss = loss_of(engine, 70, throws=rank == thrower)
            try:
                loss.backward() if plain else engine.backward(loss)
                assert rank != thrower
            except ZeroDivisionError:
                assert rank == thrower
            engine.zero_grad()
        engine.backward(loss_of(engine, sample))
        engine.step()
    assert engine.global_steps == 3
    with zerorun.zero.GatheredParameters(list(engine.module.parameters())):
        values = [parameter.detach().clone() for parameter in engine.module.parameters()]
    engine.destroy()
    return values


zerorun.init_distributed()
rank = zerorun.comm.get_rank()
for how in itertools.product(range(4), (0, 1, MICRO_STEPS - 1), (False, True)):
    if sys.argv[1] == "all" or sum(how) % 2 == 0:
        assert all(map(torch.equal, run(0, *how), run(None, *how))), how
print("PASS", flush=True)
