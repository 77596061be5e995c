"""Compiled modules and functions train as those that are not. compiled.py BACKEND STAGES [KINDS]; the backend "reader" asks
for the address of all that goes into a graph, in forward and backward, as inductor's kernels do."""

import sys

import torch
from functorch.compile import make_boxed_func
from torch._dynamo.backends.common import aot_autograd

import zerorun
from small import config


def read_addresses(graph, examples):
    def run(*inputs):
        for tensor in inputs:
            if isinstance(tensor, torch.Tensor):
                tensor.data_ptr()
        return graph(*inputs)

    return make_boxed_func(run)


def backend():
    return sys.argv[1] if sys.argv[1] != "reader" else aot_autograd(fw_compiler=read_addresses, bw_compiler=read_addresses)


def scaled(x, weight):
    return torch.tanh(x * weight) + weight


class Scale(torch.nn.Module):
    function = staticmethod(scaled)

    def __init__(self):
        super().__init__()
        self.weight = torch.nn.Parameter(torch.linspace(1, 2, 16))

    def forward(self, x):
        return self.function(x, self.weight)


def net():
    torch.manual_seed(1)
    return torch.nn.Sequential(torch.nn.Linear(6, 16), torch.nn.LayerNorm(16), Scale(), torch.nn.Linear(16, 3))


def wrap_a_module(model):
    model[2] = torch.compile(model[2], backend=backend())


def compile_a_function(model):
    model[2].function = zerorun.zero.gather_arguments(torch.compile(scaled, backend=backend()))


def compile_forward(model):
    model[2].forward = torch.compile(model[2].forward, backend=backend())


BEFORE = {"the model": lambda model: model.compile(backend=backend()),
          "a module": lambda model: model[2].compile(backend=backend()),
          "a wrapped module": wrap_a_module, "forward": compile_forward, "a function": compile_a_function}
AFTER = {"engine.compile": lambda engine: engine.compile(backend=backend()),
         "a module later": lambda engine: engine.module[2].compile(backend=backend())}


def losses(stage, before=None, after=None):
    model = net()
    if before:
        before(model)
    engine, *_ = zerorun.initialize(model=model, config=config(stage))
    if after:
        after(engine)
    found = []
    for step in range(3):
        rows = torch.randn(2, 6, generator=torch.Generator().manual_seed(10 * step + engine.global_rank))
        loss = engine(rows).pow(2).mean()
        engine.backward(loss)
        engine.step()
        found.append(loss.item())
    return found


def refused():
    engine, *_ = zerorun.initialize(model=net(), config=config(0))
    try:
        torch.compile(engine, backend=backend())(torch.ones(2, 6))
    except zerorun.UserError as error:
        return "engine.compile()" in str(error)
    return False


kinds = {**{name: (change, None) for name, change in BEFORE.items()}, **{name: (None, c) for name, c in AFTER.items()}}
for stage in map(int, sys.argv[2].split(",")):
    expected = losses(stage)
    for name, changes in kinds.items():
        if sys.argv[3:] and name not in sys.argv[3].split(","):
            continue
        torch._dynamo.reset()
        torch._dynamo.utils.counters.clear()
        found = losses(stage, *changes)
        assert torch._dynamo.utils.counters["stats"]["unique_graphs"] >= 1, f"{name} was not compiled"
        torch.testing.assert_close(found, expected, rtol=1e-5, atol=0, msg=lambda text, at=name: f"stage {stage}, {at}: {text}")
assert refused()
