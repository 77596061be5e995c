"""Optimizers of the program that the engine has no kernels for, under zero_allow_untested_optimizer."""

import pytest
import torch
import zerorun
from small import net


class OwnLion(torch.optim.Optimizer):
    def __init__(self, params, lr=1e-3, beta=0.9):
        super().__init__(params, dict(lr=lr, beta=beta))

    @torch.no_grad()
    def step(self, closure=None):
        for group in self.param_groups:
            for p in group["params"]:
                m = self.state[p].setdefault("m", torch.zeros_like(p))
                p.add_((m * group["beta"] + p.grad * (1 - group["beta"])).sign(), alpha=-group["lr"])
                m.mul_(group["beta"]).add_(p.grad, alpha=1 - group["beta"])


class Warmed(torch.optim.SGD):
    """Keeps numbers in its groups and in itself."""

    calls = 0

    @torch.no_grad()
    def step(self, closure=None):
        self.calls += 1
        for group in self.param_groups:
            group["k"] = group.get("k", 0) + 1
            for p in group["params"]:
                p.sub_(p.grad, alpha=group["lr"] * group["k"] / (10.0 + self.calls))


class Averaged(torch.optim.SGD):
    """Looks at whole parameters."""

    @torch.no_grad()
    def step(self, closure=None):
        for group in self.param_groups:
            for p in group["params"]:
                p.sub_(p.grad / p.grad.norm(), alpha=group["lr"])


class Coarse(torch.optim.SGD):
    """Keeps 8-bit moments of large parameters, as bitsandbytes does from 4096 elements on."""

    least = 4096

    @torch.no_grad()
    def step(self, closure=None):
        for group in self.param_groups:
            for p in group["params"]:
                kind = torch.uint8 if p.numel() >= self.least else torch.float32
                self.state[p].setdefault("m", torch.zeros_like(p, dtype=kind))
                p.sub_(p.grad, alpha=group["lr"])


class Surprising(Coarse):
    """Does so from a size on that no trial has."""

    least = 20_000


KINDS = {
    "NAdam": lambda p: torch.optim.NAdam(p, lr=1e-2, eps=1e-4),
    "Adamax": lambda p: torch.optim.Adamax(p, lr=1e-2),
    "RAdam": lambda p: torch.optim.RAdam(p, lr=1e-2, eps=1e-4),
    "ASGD": lambda p: torch.optim.ASGD(p, lr=1e-2),
    "Adadelta": lambda p: torch.optim.Adadelta(p, lr=1.0, eps=1e-4),
    "Rprop": lambda p: torch.optim.Rprop(p, lr=1e-3),
    "an own class": lambda p: OwnLion(p, lr=1e-2),
    "counts": lambda p: Warmed(p, lr=1e-1),
}


def start(make, stage=2, allows=True, **more):
    model = net()
    groups = [{"params": [model[0].weight, model[2].weight]}, {"params": [model[0].bias, model[2].bias], "lr": 5e-3}]
    client = make(groups)
    engine = zerorun.initialize(model=model, optimizer=client, lr_scheduler=torch.optim.lr_scheduler.StepLR(client, 2), config={
        "train_micro_batch_size_per_gpu": 2, "gradient_clipping": 0.0, "zero_allow_untested_optimizer": allows,
        "zero_optimization": {"stage": stage, "stage3_param_persistence_threshold": 0}, **more})[0]
    return engine


def step(engine, number):
    x = torch.randn(2, 6, generator=torch.Generator().manual_seed(number))
    loss = engine(x.to(engine.dtype)).float().pow(2).mean()
    engine.backward(loss)
    engine.step()
    return loss.item()


@pytest.mark.parametrize("kind", KINDS)
def test_trains_as_plain_torch_and_resumes(kind, tmp_path):
    make = KINDS[kind]
    engine, twin = start(make), net()
    plain = make([{"params": [twin[0].weight, twin[2].weight]}, {"params": [twin[0].bias, twin[2].bias], "lr": 5e-3}])
    schedule = torch.optim.lr_scheduler.StepLR(plain, 2)
    for number in range(3):
        loss = twin(torch.randn(2, 6, generator=torch.Generator().manual_seed(number))).pow(2).mean()
        plain.zero_grad()
        loss.backward()
        plain.step()
        schedule.step()
        assert step(engine, number) == pytest.approx(loss.item(), rel=1e-5)
    for a, b in zip(engine.module.parameters(), twin.parameters()):
        torch.testing.assert_close(a.detach().clone(), b.detach(), rtol=1e-5, atol=1e-6)
    engine.save_checkpoint(tmp_path, client_state={"of": "the program"})
    resumed = start(make, stage=3)
    assert resumed.load_checkpoint(tmp_path)[1] == {"of": "the program"}
    assert [step(resumed, number) for number in range(3, 6)] == [step(engine, number) for number in range(3, 6)]
    assert resumed.get_lr() == engine.get_lr()


def test_hooks_of_the_program_run_once_a_step():
    calls = []

    def make(groups):
        client = torch.optim.Adamax(groups, lr=1e-2)
        client.register_step_post_hook(lambda *args: calls.append(args[0]))
        return client

    engine = start(make)
    for number in range(2):
        step(engine, number)
    assert len(calls) == 2


def test_master_weights():
    engine = start(KINDS["NAdam"], stage=3, bf16={"enabled": True})
    first = step(engine, 0)
    assert step(engine, 0) < first


def test_what_stays_refused():
    with pytest.raises(zerorun.UserError, match="NAdam may look at whole parameters.*zero_allow_untested_optimizer"):
        start(KINDS["NAdam"], allows=False)
    with pytest.raises(zerorun.UserError, match="Averaged looks at whole parameters"):
        start(lambda p: Averaged(p, lr=0.1))
    with pytest.raises(zerorun.UserError, match="Coarse keeps 'm', which is neither a number nor float32"):
        start(lambda p: Coarse(p, lr=0.1))
    model = torch.nn.Linear(150, 150)
    engine = zerorun.initialize(model=model, optimizer=Surprising(model.parameters(), lr=0.1), config={
        "train_micro_batch_size_per_gpu": 2, "zero_allow_untested_optimizer": True, "zero_optimization": {"stage": 2}})[0]
    engine.backward(engine(torch.ones(2, 150)).sum())
    with pytest.raises(zerorun.UserError, match="Surprising keeps 'm' as torch.uint8 of shape .22512,. for a slice of 22512 elements"):
        engine.step()
    engine.destroy()
    if hasattr(torch.optim, "Muon"):
        with pytest.raises(zerorun.UserError, match="Muon"):
            start(lambda p: torch.optim.Muon([{"params": group["params"][:1]} for group in p][:1], lr=0.1))
    with pytest.raises(zerorun.UserError, match="Adafactor"):
        start(lambda p: torch.optim.Adafactor(p, lr=0.1))
    with pytest.raises(zerorun.UserError, match="LBFGS cannot run on slices"):
        model = net()
        zerorun.initialize(model=model, optimizer=torch.optim.LBFGS(model.parameters()), config={
            "train_micro_batch_size_per_gpu": 2, "zero_allow_untested_optimizer": True})
    stepped = torch.nn.Parameter(torch.ones(2))
    stepped.grad = torch.ones(2)
    client = torch.optim.NAdam([stepped], lr=0.1)
    client.step()
    with pytest.raises(zerorun.UserError, match="has been stepped"):
        zerorun.initialize(model=torch.nn.ParameterList([stepped]), optimizer=client, config={
            "train_micro_batch_size_per_gpu": 2, "zero_allow_untested_optimizer": True})
