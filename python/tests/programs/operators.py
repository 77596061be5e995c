"""Operators defined after initialize(), functional transforms and modes train as in plain torch. operators.py STAGE,..."""

import math
import sys

import torch
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

import zerorun
from small import config

LR = 0.0625  # a power of two, so that an update has one rounding
library = torch.library.Library("zerorun_python_test", "FRAGMENT")


class Net(torch.nn.Module):
    def __init__(self, forward):
        super().__init__()
        torch.manual_seed(1)
        self.first = torch.nn.Linear(6, 8)
        self.scale = torch.nn.Parameter(torch.linspace(0.5, 1.5, 8))
        self.last = torch.nn.Linear(8, 3)
        self.how = forward

    def forward(self, x):
        return self.how(self, x)


def define(name, function):
    """Defines an operator when it is first called, which is after initialize()."""
    if not hasattr(torch.ops.zerorun_python_test, name):
        function()
    return getattr(torch.ops.zerorun_python_test, name)


def make_raw():
    @torch.library.custom_op("zerorun_python_test::raw", mutates_args=())
    def raw(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        return torch.from_numpy(x.detach().numpy() * weight.detach().numpy())  # without an operator

    def keep(ctx, inputs, output):
        ctx.save_for_backward(*inputs)

    def backward(ctx, gradient):
        x, weight = ctx.saved_tensors
        return gradient * weight, (gradient * x).sum(0)

    raw.register_autograd(backward, setup_context=keep)


def make_composite():
    library.define("composite(Tensor x, Tensor weight) -> Tensor")
    library.impl("composite", lambda x, weight: torch.tanh(x * weight).matmul(torch.diag(weight)),
                 "CompositeImplicitAutograd")


def raw(net, x):
    return net.last(define("raw", make_raw)(net.first(x), net.scale))


def composite(net, x):
    return net.last(define("composite", make_composite)(net.first(x), net.scale))


def closure(net, x):
    """An operator that uses a parameter that is not among its arguments."""
    current.append(net)

    def make():
        @torch.library.custom_op("zerorun_python_test::closure", mutates_args=())
        def inner(x: torch.Tensor) -> torch.Tensor:
            return x * torch.sin(current[-1].scale.detach()).sum()

        inner.register_autograd(lambda ctx, gradient: gradient * torch.sin(current[-1].scale.detach()).sum())

    return net.last(define("closure", make)(net.first(x) * net.scale))


current = []


def functional(net, x):
    values = dict(net.last.named_parameters())
    rows = torch.vmap(lambda row: torch.func.functional_call(net.last, values, (row,)))(net.first(x) * net.scale)
    slope = torch.func.grad(lambda scale: torch.tanh(scale * net.first.bias).sum())(net.scale)
    return rows + torch.vmap(lambda a, b: a * b.exp())(net.scale, slope).sum()


class CountFunctions(TorchFunctionMode):
    calls = 0

    def __torch_function__(self, function, types, arguments=(), keywords=None):
        self.calls += 1
        return function(*arguments, **(keywords or {}))


class CountOperators(TorchDispatchMode):
    calls = 0

    def __torch_dispatch__(self, function, types, arguments=(), keywords=None):
        self.calls += 1
        return function(*arguments, **(keywords or {}))


def modes(net, x):
    with CountFunctions() as functions, CountOperators() as operators:
        result = net.last(torch.tanh(net.first(x)) * net.scale)
    assert functions.calls >= 3 and operators.calls >= 4, (functions.calls, operators.calls)
    return result


def rows(step):
    return torch.randn(4, 6, generator=torch.Generator().manual_seed(step))


def with_engine(how, stage):
    settings = config(stage, optimizer={"type": "SGD", "params": {"lr": LR}}, gradient_clipping=0.0)
    engine, *_ = zerorun.initialize(model=Net(how), config={**settings, "train_micro_batch_size_per_gpu": 4})
    found = []
    for step in range(4):
        loss = engine(rows(step)).pow(2).mean()
        engine.backward(loss)
        engine.step()
        found.append(loss.item())
    return found


def plain(how):
    net = Net(how)
    optimizer = torch.optim.SGD(net.parameters(), lr=LR)
    found = []
    for step in range(4):
        loss = net(rows(step)).pow(2).mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        found.append(loss.item())
    return found


torch.set_num_threads(1)
for stage in map(int, sys.argv[1].split(",")):
    for how in (raw, composite, closure, functional, modes):
        found, expected = with_engine(how, stage), plain(how)
        assert found == expected and all(map(math.isfinite, found)), f"{how.__name__}: {found}, plain torch: {expected}"
