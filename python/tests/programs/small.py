"""A small model and engine for tests of one process."""

import torch

import zerorun


def config(stage=0, **more):
    return {"train_micro_batch_size_per_gpu": 2, "optimizer": {"type": "AdamW", "params": {"lr": 0.01}},
            "zero_optimization": {"stage": stage, "stage3_param_persistence_threshold": 0}, **more}


def net():
    torch.manual_seed(1)
    return torch.nn.Sequential(torch.nn.Linear(6, 16), torch.nn.Tanh(), torch.nn.Linear(16, 3))


def make(stage=0, model=None, **more):
    return zerorun.initialize(model=net() if model is None else model, config=config(stage, **more))[0]


def loss_of(engine):
    return engine(torch.ones(2, 6)).pow(2).mean()


def step(engine):
    loss = loss_of(engine)
    engine.backward(loss)
    engine.step()
    return loss.item()


def with_client(stage=2, kind=lambda p: torch.optim.AdamW(p, lr=0.01), model=None, **more):
    model = net() if model is None else model
    client = kind(model.parameters())
    conf = {name: value for name, value in config(stage, **more).items() if name != "optimizer"}
    return zerorun.initialize(model=model, optimizer=client, config=conf)[0], client
