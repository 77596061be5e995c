"""Whole gradients beside plain torch's, state_dicts saved by one rank alone, and copies of the model, on all ranks of
this job: whole_values.py FOLDER STAGE,..."""

import contextlib
import copy
import pathlib
import sys

import pytest
import torch

import zerorun
from small import config
from zerorun.utils import (safe_get_full_fp32_param, safe_get_full_grad, safe_get_full_optimizer_state,
                           safe_set_full_grad)

folder = pathlib.Path(sys.argv[1])
zerorun.init_distributed()
rank, ranks = zerorun.comm.get_rank(), zerorun.comm.get_world_size()


class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        torch.manual_seed(4)
        self.first, self.tied, self.frozen, self.unused = (torch.nn.Linear(6, 6) for _ in range(4))
        self.tied.weight = self.first.weight
        self.frozen.requires_grad_(False)

    def forward(self, x):
        return self.frozen(torch.tanh(self.tied(torch.tanh(self.first(x)))))


def batch(step, of_rank):
    return torch.randn(2, 6, generator=torch.Generator().manual_seed(100 * step + of_rank))


def average(gradients):
    return None if gradients[0] is None else sum(g.float() for g in gradients) / len(gradients)


def expected_gradients(model, step, dtype):
    """Of two micro-steps on every rank, averaged."""
    plain = Net().to(dtype)
    plain.load_state_dict({name: tensor.detach().clone() for name, tensor in model.state_dict(keep_vars=True).items()})
    found = {name: [] for name, _ in plain.named_parameters()}
    for of_rank in range(ranks):
        for micro in range(2):
            plain.zero_grad()
            plain(batch(2 * step + micro, of_rank).to(dtype)).float().pow(2).mean().backward()
            for name, parameter in plain.named_parameters():
                found[name].append(parameter.grad)
    return {name: average(gradients) for name, gradients in found.items()}


def train(engine, step, reads):
    gradients = {}
    for micro in range(2):
        engine.backward(engine(batch(2 * step + micro, rank).to(engine.dtype)).float().pow(2).mean())
        if reads and micro == 0:
            with pytest.raises(zerorun.UserError, match="is_gradient_accumulation_boundary"):
                safe_get_full_grad(engine.module.first.weight)
        if reads and micro == 1:
            gradients = {name: safe_get_full_grad(parameter) for name, parameter in engine.module.named_parameters()}
        engine.step()
    return gradients


def gradients_are_whole(stage, precision):
    more = {"gradient_accumulation_steps": 2, "gradient_clipping": 0.01}
    if precision != "fp32":
        more[precision] = {"enabled": True, **({"initial_scale_power": 8} if precision == "fp16" else {})}
    engine, _, _, _ = zerorun.initialize(model=Net(), config=config(stage, **more))
    twin, _, _, _ = zerorun.initialize(model=Net(), config=config(stage, **more))
    with pytest.raises(zerorun.UserError, match="without an earlier backward"):
        safe_get_full_grad(engine.module.first.weight)
    allowed = {"fp32": dict(rtol=1e-5, atol=1e-7), "bf16": dict(rtol=2e-2, atol=2e-4),
               "fp16": dict(rtol=4e-3, atol=4e-5)}[precision]
    for step in range(2):
        expected = expected_gradients(engine.module, step, engine.dtype)
        found = train(engine, step, reads=True)
        train(twin, step, reads=False)
        for name, gradient in found.items():
            place = f"stage {stage}, {precision}, {name}"
            if name.startswith("frozen"):
                assert gradient is None, place
            elif name.startswith("unused"):
                assert not gradient.any(), place
            else:
                assert gradient.dtype == torch.float32 and gradient.any(), place
                torch.testing.assert_close(gradient, expected[name], **allowed, msg=lambda text, at=place: f"{at}: {text}")
    for a, b in zip(engine.module.parameters(), twin.module.parameters()):
        assert torch.equal(a, b), "reading gradients changes nothing"


def gradients_are_set(stage, precision):
    """After safe_set_full_grad() the engine makes the step that plain torch makes with these gradients."""
    settings = {"lr": 0.01, "weight_decay": 0.1}
    more = {"gradient_clipping": 0.5, "optimizer": {"type": "AdamW", "params": settings}}
    if precision != "fp32":
        more[precision] = {"enabled": True}
    if precision == "fp16":
        more["fp16"]["initial_scale_power"] = 8
    engine, _, _, _ = zerorun.initialize(model=Net(), config=config(stage, **more))
    frozen = engine.module.frozen.weight
    assert torch.equal(safe_get_full_fp32_param(frozen), frozen.float())
    assert safe_get_full_optimizer_state(frozen, "exp_avg") is None
    trained = {name: p for name, p in engine.module.named_parameters() if p.requires_grad}
    plain = {name: torch.nn.Parameter(safe_get_full_fp32_param(p)) for name, p in trained.items()}
    optimizer = torch.optim.AdamW(plain.values(), **settings)
    random = torch.Generator().manual_seed(3)
    for step in range(2):
        engine.backward(engine(batch(step, rank).to(engine.dtype)).float().pow(2).mean())
        for name, parameter in trained.items():
            # every precision represents these numbers exactly, also multiplied by the loss scale and number of ranks
            plain[name].grad = torch.randint(-8, 9, parameter.shape, generator=random) / 8
            safe_set_full_grad(parameter, plain[name].grad)
            assert torch.equal(safe_get_full_grad(parameter), plain[name].grad), (stage, precision, name)
        with pytest.raises(zerorun.UserError, match="shape"):
            safe_set_full_grad(engine.module.first.weight, torch.zeros(2))
        with pytest.raises(zerorun.UserError, match="frozen"):
            safe_set_full_grad(frozen, torch.zeros(6, 6))
        norm = torch.nn.utils.clip_grad_norm_(plain.values(), 0.5)
        engine.step()
        optimizer.step()
        torch.testing.assert_close(torch.tensor(engine.get_global_grad_norm()), norm, rtol=1e-5, atol=0)
        for name, parameter in trained.items():
            torch.testing.assert_close(safe_get_full_fp32_param(parameter), plain[name].detach(), rtol=1e-5, atol=1e-6,
                                       msg=lambda text, at=(stage, precision, name): f"{at}: {text}")


def copies_are_plain_models(stage):
    engine, _, _, _ = zerorun.initialize(model=Net(), config=config(stage))
    values = {name: parameter.detach().clone() for name, parameter in engine.module.named_parameters()}
    copied = copy.deepcopy(engine.module)  # on all ranks
    file = folder / f"whole_model{stage}.pt"
    with zerorun.zero.GatheredParameters(list(engine.module.parameters())):
        if rank == 0:
            torch.save(engine.module, file)
    torch.distributed.barrier()
    engine.destroy()
    for model in (copied, torch.load(file, weights_only=False)):
        assert not any("_hooks" in name and hooks for module in model.modules() for name, hooks in vars(module).items())
        assert model.tied.weight is model.first.weight and not model.frozen.weight.requires_grad
        for name, parameter in model.named_parameters():
            assert type(parameter) is torch.nn.Parameter and torch.equal(parameter, values[name]), (stage, name)
        again, _, _, _ = zerorun.initialize(model=model, config=config(stage))  # trains like any other model
        again.backward(again(batch(0, rank)).pow(2).mean())
        again.step()
        again.destroy()


def state_dicts_are_saved_by_one_rank(stage):
    engine, _, _, _ = zerorun.initialize(model=Net(), config=config(stage))
    engine.backward(engine(batch(0, rank)).pow(2).mean())
    engine.step()
    shares = engine.communication_shares_memory
    file = folder / f"model{stage}.pt"
    needs_others = pytest.raises(RuntimeError, match=r"zerorun\.zero\.GatheredParameters")
    if rank == 0:
        with contextlib.nullcontext() if shares or stage < 3 else needs_others:
            torch.save(engine.module.state_dict(), file)
    torch.distributed.barrier()
    with torch.no_grad():
        engine.module.first.bias.mul_(2)  # at stage 3 the other ranks get their parts at the next use
    if rank == 0:
        with contextlib.nullcontext() if stage < 3 else needs_others:
            torch.save(engine.module.state_dict(), folder / "written.pt")
    torch.distributed.barrier()
    if shares or stage < 3:
        saved = torch.load(file)
        assert saved["tied.weight"].data_ptr() == saved["first.weight"].data_ptr()
        for name, parameter in engine.module.state_dict().items():
            assert torch.equal(saved[name] * (2 if name == "first.bias" else 1), parameter), name
            assert type(saved[name]) is torch.Tensor
    copied = copy.deepcopy(engine.module.state_dict())  # on all ranks
    engine.module.load_state_dict(copied)


for stage in map(int, sys.argv[2].split(",")):
    for precision in ("fp32", *{1: ["bf16"], 2: ["fp16"], 3: ["bf16"]}.get(stage, [])):
        gradients_are_whole(stage, precision)
        gradients_are_set(stage, precision)
    state_dicts_are_saved_by_one_rank(stage)
    copies_are_plain_models(stage)
