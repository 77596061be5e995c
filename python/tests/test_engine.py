"""The engine's interface on one rank: what it returns, and that it trains as torch does."""

import ctypes

import pytest
import safetensors
import torch
import torch.utils.checkpoint
import zerorun
from small import config, loss_of, make, net, step

ALL = pytest.mark.parametrize("stage", [0, 1, 2, 3])


def plain_losses(steps, make_optimizer=lambda p: torch.optim.AdamW(p, lr=0.01, weight_decay=0.0)):
    model = net()
    optimizer = make_optimizer(model.parameters())
    losses = []
    for _ in range(steps):
        optimizer.zero_grad()
        loss = model(torch.ones(2, 6)).pow(2).mean()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        losses.append(loss.item())
    return losses


@ALL
def test_it_trains_as_torch(stage):
    engine = make(stage)
    assert [step(engine) for _ in range(5)] == pytest.approx(plain_losses(5), rel=1e-5)
    assert engine.global_steps == 5 and engine.get_lr() == [0.01] and not engine.optimizer.overflow
    assert engine.train_batch_size() == 2 and engine.zero_optimization_stage() == stage
    assert engine.module[0].weight.shape == (16, 6)


@ALL
@pytest.mark.parametrize("kind", [
    lambda p: torch.optim.Adam(p, lr=0.01, weight_decay=0.1), lambda p: torch.optim.AdamW(p, lr=0.01, amsgrad=True),
    lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9, nesterov=True, weight_decay=0.01),
    lambda p: torch.optim.Adagrad(p, lr=0.1, lr_decay=0.01), lambda p: torch.optim.RMSprop(p, lr=0.01, centered=True)])
def test_optimizers_of_the_program(stage, kind):
    model = net()
    plain = config(stage)
    del plain["optimizer"]
    engine, optimizer, _, _ = zerorun.initialize(model=model, optimizer=kind(model.parameters()), config=plain)
    assert [step(engine) for _ in range(5)] == pytest.approx(plain_losses(5, kind), rel=1e-5)
    optimizer.param_groups[0]["lr"] = 0.0
    before = [p.detach().clone() for p in model.parameters()]
    step(engine)
    assert all(torch.equal(p, b) for p, b in zip(model.parameters(), before))


@ALL
def test_loss_backward_and_accumulation(stage):
    engine, other = make(stage, gradient_accumulation_steps=2), make(0, gradient_accumulation_steps=2)
    for number in range(6):
        loss_of(engine).backward()
        engine.step()
        assert engine.is_gradient_accumulation_boundary() == (number % 2 == 0)
        other.backward(loss_of(other))
        other.step()
    assert engine.global_steps == 3
    for a, b in zip(engine.module.parameters(), other.module.parameters()):
        assert torch.equal(a, b)


@pytest.mark.parametrize("reentrant", [True, False])
def test_recomputation(reentrant):
    class Recomputed(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.net = net()

        def forward(self, x):
            x = x.requires_grad_()
            return torch.utils.checkpoint.checkpoint(self.net, x, use_reentrant=reentrant)

    engine, other = make(3, Recomputed()), make(3)
    assert [step(engine) for _ in range(4)] == [step(other) for _ in range(4)]


def test_tied_weights_autocast_and_no_sync():
    class Tied(torch.nn.Module):
        def __init__(self):
            super().__init__()
            torch.manual_seed(2)
            self.a, self.b = torch.nn.Linear(6, 6), torch.nn.Linear(6, 6)
            self.b.weight = self.a.weight

        def forward(self, x):
            return self.b(self.a(x))

    engine = make(3, Tied())
    with torch.autocast("cpu", dtype=torch.bfloat16):
        loss = loss_of(engine).float()
    with engine.no_sync():
        engine.backward(loss)
    first = step(engine)
    assert step(engine) < first


@ALL
def test_checkpoints(stage, tmp_path):
    model = net()
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    schedule = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.9)
    plain = config(stage)
    del plain["optimizer"]
    engine, _, _, _ = zerorun.initialize(model=model, optimizer=optimizer, lr_scheduler=schedule, config=plain)
    assert engine.load_checkpoint(tmp_path) == (None, None)
    for _ in range(3):
        step(engine)
    assert engine.save_checkpoint(tmp_path, client_state={"epoch": 3})
    expected = [step(engine) for _ in range(3)]
    model = net()
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    schedule = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.9)
    again, _, _, _ = zerorun.initialize(model=model, optimizer=optimizer, lr_scheduler=schedule, config=plain)
    path, state = again.load_checkpoint(tmp_path)
    assert state == {"epoch": 3} and path.endswith("global_step3")
    assert schedule.last_epoch == 3 and optimizer.param_groups[0]["lr"] == pytest.approx(0.01 * 0.9**3)
    assert [step(again) for _ in range(3)] == expected
    assert again.save_16bit_model(tmp_path / "model")
    safetensors = pytest.importorskip("safetensors.torch")
    saved = safetensors.load_file(tmp_path / "model/model.safetensors")
    whole = again.consolidated_16bit_state_dict()
    assert set(saved) == set(whole) and all(torch.equal(saved[n], whole[n]) for n in saved)


def with_buffers(scratch_numel):
    model = net()
    model.register_buffer("kept", torch.full((2,), 3.0))
    model.register_buffer("scratch", torch.full((scratch_numel,), 4.0), persistent=False)
    return model


@ALL
def test_buffers_that_no_checkpoint_has(stage, tmp_path):
    saving, *_ = zerorun.initialize(model=with_buffers(2), config=config(stage))
    saving.module.kept.fill_(7)
    saving.save_checkpoint(tmp_path, tag="tag")
    saving.save_16bit_model(tmp_path, "whole.safetensors")
    with safetensors.safe_open(tmp_path / "whole.safetensors", "pt") as whole:
        assert set(whole.keys()) == set(saving.module.state_dict())
    loading, *_ = zerorun.initialize(model=with_buffers(5), config=config(stage))
    loading.load_checkpoint(tmp_path, tag="tag")
    assert loading.module.kept.tolist() == [7, 7] and loading.module.scratch.tolist() == 5 * [4]
    assert loading.bytes_by_category()["buffers"] - saving.bytes_by_category()["buffers"] == 3 * 4


@ALL
def test_a_checkpoint_has_the_learning_rate_of_an_engine_without_a_schedule(stage, tmp_path):
    """As Lightning loads it, which has a schedule of its own."""
    plain = config(stage)
    del plain["optimizer"]

    def train(steps, rate, load=False):
        model = net()
        engine, optimizer, _, _ = zerorun.initialize(model=model, optimizer=torch.optim.AdamW(model.parameters(), lr=rate), config=plain)
        if load:
            engine.load_checkpoint(tmp_path, load_lr_scheduler_states=False)
        losses = []
        for number in range(steps):
            if number == 2 and not load:
                optimizer.param_groups[0]["lr"] = 0.005
                engine.save_checkpoint(tmp_path)
            losses.append(step(engine))
        return losses, optimizer.param_groups[0]["lr"]

    losses, _ = train(5, 0.01)
    assert train(3, 0.03, load=True) == (losses[2:], 0.005)


@ALL
def test_states_of_a_parameter(stage):
    engine = make(stage, bf16={"enabled": True})
    weight = engine.module[0].weight
    x = torch.ones(2, 6, dtype=torch.bfloat16)
    engine.backward(engine(x).float().pow(2).mean())
    engine.step()
    master = zerorun.utils.safe_get_full_fp32_param(weight)
    assert master.dtype == torch.float32 and torch.equal(master.bfloat16(), weight)
    assert zerorun.utils.safe_get_full_optimizer_state(weight, "exp_avg").shape == weight.shape
    assert zerorun.utils.safe_get_full_optimizer_state(weight, "none") is None
    exact = torch.rand(16, 6) + 1e-4
    zerorun.utils.safe_set_full_fp32_param(weight, exact)
    zerorun.utils.safe_set_full_optimizer_state(weight, exact, "exp_avg")
    assert torch.equal(weight, exact.bfloat16())
    assert torch.equal(zerorun.utils.safe_get_full_fp32_param(weight), exact)
    assert torch.equal(zerorun.utils.safe_get_full_optimizer_state(weight, "exp_avg"), exact)
    with pytest.raises(zerorun.UserError, match="shape"):
        zerorun.utils.safe_set_full_fp32_param(weight, torch.ones(2))


class _RawLinear(torch.autograd.Function):
    """Reads the weight through its address, in forward and in backward."""

    @staticmethod
    def forward(ctx, x, weight):
        ctx.parameter = weight
        return x @ _through_address(weight).t()

    @staticmethod
    def backward(ctx, gradient):
        return gradient @ _through_address(ctx.parameter), torch.zeros_like(ctx.parameter)


def _through_address(weight):
    memory = (ctypes.c_float * weight.numel()).from_address(weight.data_ptr())
    return torch.tensor(list(memory)).view(weight.shape)


class RawReader(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.weight = torch.nn.Parameter(torch.rand(6, 6))
        self.function = _RawLinear.apply

    def forward(self, x):
        return self.function(x, self.weight)


def test_a_model_without_parameters_has_no_engine():
    engine = make(3)  # of another model
    model = torch.nn.Sequential(torch.nn.Tanh())
    tanh, = zerorun.utils.set_z3_leaf_modules(model, [torch.nn.Tanh])
    assert getattr(tanh, zerorun.raw_access.MARK)  # for the engine that the model may get later
    step(engine)


@pytest.mark.parametrize("named_before", [True, False])
def test_a_module_that_reads_addresses(named_before):
    model = torch.nn.Sequential(torch.nn.Linear(6, 6), RawReader(), torch.nn.Linear(6, 2))
    expected = model(torch.ones(2, 6)).detach()
    if named_before:
        zerorun.utils.set_z3_leaf_modules(model, [RawReader])
    engine = make(3, model)
    if not named_before:
        with pytest.raises(RuntimeError, match="partitioned"):
            engine(torch.ones(2, 6))
        engine.gather_around(RawReader)
    assert torch.equal(engine(torch.ones(2, 6)), expected)
    for _ in range(3):
        step(engine)


@pytest.mark.parametrize("change", [lambda weight: weight, lambda weight: weight.view(6, 6)], ids=["itself", "a view"])
def test_a_function_that_reads_addresses(change):
    model = torch.nn.Sequential(torch.nn.Linear(6, 6), RawReader(), torch.nn.Linear(6, 2))
    expected = model(torch.ones(2, 6)).detach()
    function = zerorun.zero.gather_arguments(_RawLinear.apply)
    model[1].function = lambda x, weight: function(x, change(weight))
    engine = make(3, model)
    assert torch.equal(engine(torch.ones(2, 6)), expected)
    for _ in range(2):
        step(engine)
    with pytest.raises(ZeroDivisionError):
        zerorun.zero.gather_arguments(lambda module: 1 / 0)(model[1])
    step(engine)


def test_state_dict_in_a_scope(tmp_path):
    engine = make(3)
    step(engine)
    with zerorun.zero.GatheredParameters(list(engine.module.parameters())):
        torch.save(engine.module.state_dict(), tmp_path / "model.pt")
    loaded = torch.load(tmp_path / "model.pt")
    for name, parameter in engine.module.named_parameters():
        assert torch.equal(loaded[name], parameter)


def test_a_schedule_that_keeps_values_in_groups():
    def made(model):
        optimizer = torch.optim.AdamW([{"params": model[0].parameters()}, {"params": model[2].parameters()}], lr=0.01)
        return optimizer, torch.optim.lr_scheduler.OneCycleLR(optimizer, max_lr=[0.1, 0.02], total_steps=8)

    model, twin = net(), net()
    (optimizer, schedule), (plain, plain_schedule) = made(model), made(twin)
    settings = {name: value for name, value in config(2, gradient_clipping=0).items() if name != "optimizer"}
    engine, _, _, _ = zerorun.initialize(model=model, optimizer=optimizer, lr_scheduler=schedule, config=settings)
    for _ in range(7):
        loss = twin(torch.ones(2, 6)).pow(2).mean()
        plain.zero_grad()
        loss.backward()
        plain.step()
        plain_schedule.step()
        assert step(engine) == pytest.approx(loss.item(), rel=1e-5)
        assert engine.get_lr() == [group["lr"] for group in plain.param_groups]


def test_training_data_and_schedules():
    data = torch.utils.data.TensorDataset(torch.ones(8, 6))
    engine, optimizer, loader, schedule = zerorun.initialize(
        model=net(), training_data=data, config=config(1, scheduler={"type": "WarmupLR", "params": {
            "warmup_max_lr": 0.02, "warmup_num_steps": 4, "warmup_type": "linear"}}))
    other = torch.optim.SGD(net().parameters(), lr=0.01)
    ours = zerorun.runtime.lr_schedules.WarmupLR(other, warmup_max_lr=0.02, warmup_num_steps=4, warmup_type="linear")
    for (rows,) in loader:
        assert rows.shape == (2, 6)
        engine.backward(engine(rows).pow(2).mean())
        engine.step()
        ours.step()
        assert schedule.get_last_lr() == ours.get_last_lr() == [optimizer.param_groups[0]["lr"]]


def test_fp16_scales_and_skips():
    engine = make(2, fp16={"enabled": True, "initial_scale_power": 4})
    x = torch.ones(2, 6, dtype=torch.float16)
    engine.scale(engine(x).float().pow(2).mean()).backward()
    engine.step()
    assert engine.loss_scale == 16 and not engine.optimizer.overflow
    engine.backward(engine(x).float().pow(2).mean() * float("inf"))
    engine.step()
    assert engine.optimizer.overflow and engine.skipped_steps == 1


class Interrupted:
    """The engine's core, but Ctrl-C comes when step() has updated."""

    def __init__(self, core):
        self._of = core

    def __getattr__(self, name):
        return getattr(self._of, name)

    def step(self):
        self._of.step()
        raise KeyboardInterrupt


def test_an_interrupt_costs_the_schedule_no_step():
    model = net()
    client = torch.optim.SGD(model.parameters(), lr=1.0)
    plain = {name: value for name, value in config(2).items() if name != "optimizer"}
    engine = zerorun.initialize(model=model, optimizer=client, config=plain,
                                lr_scheduler=torch.optim.lr_scheduler.StepLR(client, 2))[0]
    core, schedule = engine._core, engine.lr_scheduler
    engine._core = Interrupted(core)
    with pytest.raises(KeyboardInterrupt):
        step(engine)
    engine._core = core
    assert (engine.global_steps, schedule.last_epoch) == (1, 0)
    step(engine)
    assert (engine.global_steps, schedule.last_epoch) == (2, 2)
    assert engine.get_lr()[0] == pytest.approx(0.1)
