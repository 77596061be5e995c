"""Checks that engines which are made and destroyed in one process leave no files, threads or memory, also for one model, and that
memory does not grow in 1,000 steps: lifetimes.py FOLDER engines|again|steps..."""

import gc
import os
import sys
import threading
import time

import torch

import zerorun


def resident():
    with open("/proc/self/statm", encoding="ascii") as file:
        return int(file.read().split()[1]) * os.sysconf("SC_PAGESIZE")


def counts():
    return len(os.listdir("/proc/self/fd")), len(os.listdir("/proc/self/task"))


def counts_after(before):
    """The counts, when they are near those before. The other rank may be late to close its ends of connections."""
    for _ in range(100):
        gc.collect()
        after = counts()
        if after[0] <= before[0] + 2 and after[1] <= before[1] + 1:
            return after
        time.sleep(0.1)
    raise AssertionError(f"open files and threads: {before} before, {after} after")


def net():
    return torch.nn.Sequential(torch.nn.Linear(64, 256), torch.nn.ReLU(), torch.nn.Linear(256, 64))


def make(stage, model=None):
    model = net() if model is None else model
    engine, *_ = zerorun.initialize(model=model, config={
        "train_micro_batch_size_per_gpu": 1, "optimizer": {"type": "AdamW", "params": {"lr": 1e-3}},
        "zero_optimization": {"stage": stage, "stage3_param_persistence_threshold": 0}})
    return engine


def step(engine):
    engine.backward(engine(torch.ones(2, 64)).pow(2).mean())
    engine.step()


def engines():
    for number in range(110):
        if number == 10:
            gc.collect()
            before, memory = counts(), resident()
        engine = make(number % 4)
        step(engine)
        if number % 3 == 0:
            engine.destroy()
        elif number % 3 == 1:
            model = engine.module  # outlives the engine
            del engine
            model(torch.ones(1, 64)) if number % 4 < 1 else None
            del model
        else:
            engine.itself = [engine]  # a reference cycle: only the garbage collector destroys the engine
            del engine
            gc.collect()
    engine = model = None
    after, grown = counts_after(before), resident() - memory
    assert grown < 40e6, f"100 engines left {grown / 1e6:.0f} MB"
    print(f"files, threads {before} -> {after}, memory + {grown / 1e6:.1f} MB, Python threads {threading.active_count()}")


def steps(folder):
    engine = make(3)
    seen = []
    engine.module[0].register_forward_hook(lambda *_: seen.append(1) if len(seen) < 5 else None)
    engine.module[2].weight.register_hook(lambda gradient: None)
    for number in range(1000):
        step(engine)
        if number % 100 == 50:
            engine.save_checkpoint(folder, keep_last=2)
            engine.eval()
            with torch.no_grad():
                engine(torch.ones(2, 64))
            engine.train()
        if number == 200:
            memory = resident()
    grown = resident() - memory
    assert grown < 8e6, f"800 steps took {grown / 1e6:.1f} MB more"
    print(f"800 steps: memory + {grown / 1e6:.1f} MB")


def again():
    """One model gets an engine after the other, with its values. At stage 3 the next engine takes its parameters over."""
    for stage in range(4):
        torch.manual_seed(stage)  # the same on all ranks
        model, plain = net(), net()
        plain.load_state_dict(model.state_dict())
        for number in range(30):
            engine = make(stage, model)
            step(engine)
            optimizer = torch.optim.AdamW(plain.parameters(), lr=1e-3, weight_decay=0)
            plain(torch.ones(2, 64)).pow(2).mean().backward()
            torch.nn.utils.clip_grad_norm_(plain.parameters(), 1.0)
            optimizer.step()
            optimizer.zero_grad()
            if stage < 3:
                engine.destroy()
            if number == 9:
                gc.collect()
                before, memory = counts(), resident()
        with zerorun.zero.GatheredParameters(list(model.parameters())):
            for own, expected in zip(model.parameters(), plain.parameters()):
                torch.testing.assert_close(own.detach().clone(), expected.detach(), rtol=1e-3, atol=1e-4)
        counts_after(before)
        grown = resident() - memory
        assert grown < 15e6, f"stage {stage}: 20 engines of one model left {grown / 1e6:.0f} MB"
        print(f"stage {stage}: memory + {grown / 1e6:.1f} MB")


gc.freeze()  # the garbage collector looks at what comes from now on, and not each time at the modules of torch
for part in sys.argv[2:]:
    {"engines": engines, "again": again, "steps": lambda: steps(sys.argv[1])}[part]()
