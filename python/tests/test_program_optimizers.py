"""Optimizers that the program has made: what they keep, what calls on them do, and engines without one."""

import pytest
import torch
import zerorun
from small import config, loss_of, make, net, step, with_client

ALL = pytest.mark.parametrize("stage", [0, 1, 2, 3])
PLAIN = {name: value for name, value in config().items() if name != "optimizer"}


def test_calls_on_the_optimizer_of_the_program(tmp_path):
    engine, client = with_client()
    for name, arguments in (("step", ()), ("state_dict", ()), ("load_state_dict", ({},)), ("add_param_group", ({},))):
        with pytest.raises(zerorun.UserError, match=f"optimizer.{name}"):
            getattr(client, name)(*arguments)
    with pytest.raises(zerorun.UserError, match="add_param_group"):
        engine.optimizer.add_param_group({"params": []})
    client.param_groups.append(dict(client.param_groups[0]))
    engine.backward(loss_of(engine))
    with pytest.raises(zerorun.UserError, match="2 parameter groups, and had 1"):
        engine.step()
    client.param_groups.pop()
    engine.step()
    engine.destroy()
    assert "param_groups" in client.state_dict()


def test_a_client_whose_groups_are_another_list():
    engine, client = with_client(kind=lambda p: torch.optim.SGD(p, lr=0.1))
    client.param_groups = [dict(group, lr=0.0) for group in client.param_groups]
    first = step(engine)
    assert step(engine) == first


@ALL
@pytest.mark.parametrize("from_config", [False, True])
def test_weight_decay_and_keys_of_the_program(stage, from_config):
    def groups(model):
        return [{"params": [model[0].weight, model[2].weight], "weight_decay": 0.05, "lr_scale": 0.5},
                {"params": [model[0].bias, model[2].bias], "weight_decay": 0.0, "lr_scale": 1.0}]

    def schedule(optimizer, number):
        for group in optimizer.param_groups:
            group["lr"] = 0.01 * group["lr_scale"]
            if group["weight_decay"] > 0:
                group["weight_decay"] = 0.1 + number

    model, twin = net(), net()
    plain = torch.optim.AdamW(groups(twin), lr=0.01)
    if from_config:
        engine, optimizer, _, _ = zerorun.initialize(model=model, model_parameters=groups(model), config=config(
            stage, gradient_clipping=0.0))
    else:
        engine, optimizer, _, _ = zerorun.initialize(
            model=model, optimizer=torch.optim.AdamW(groups(model), lr=0.01),
            config={**PLAIN, "gradient_clipping": 0.0, "zero_optimization": {"stage": stage}})
    for number in range(3):
        schedule(optimizer, number)
        schedule(plain, number)
        loss = twin(torch.ones(2, 6)).pow(2).mean()
        plain.zero_grad()
        loss.backward()
        plain.step()
        assert step(engine) == pytest.approx(loss.item(), rel=1e-5)


def test_options_of_optimizers_in_groups_are_refused():
    model = net()
    with pytest.raises(zerorun.UserError, match="momentum"):
        zerorun.initialize(model=model, model_parameters=[{"params": model.parameters(), "momentum": 0.9}], config=config())


class Named(torch.optim.AdamW):
    """Only adds something."""

    def __init__(self, params, **more):
        super().__init__(params, **more)
        self.note = "of the program"

    def log(self):
        return self.note


class Changed(torch.optim.AdamW):
    def step(self, closure=None):
        return super().step(closure)


def test_subclasses_of_optimizers():
    engine, _ = with_client(kind=lambda p: Named(p, lr=0.01))
    twin, _ = with_client()
    assert [step(engine) for _ in range(3)] == [step(twin) for _ in range(3)]
    with pytest.raises(zerorun.UserError, match="Changed may look at whole parameters"):
        with_client(kind=lambda p: Changed(p, lr=0.01))


@ALL
@pytest.mark.parametrize("conf", [PLAIN, config()], ids=["no optimizer", "a frozen model"])
def test_an_engine_without_an_optimizer(stage, conf, tmp_path):
    model = net()
    expected = model(torch.ones(2, 6)).detach()
    if "optimizer" in conf:
        model.requires_grad_(False)
    zero = {"stage": stage, "stage3_param_persistence_threshold": 0}
    engine, optimizer, _, schedule = zerorun.initialize(model=model, config={**conf, "zero_optimization": zero})
    assert optimizer is None and schedule is None
    engine.eval()
    with torch.no_grad():
        assert torch.equal(engine(torch.ones(2, 6)), expected)
    if stage == 3:
        with pytest.raises(RuntimeError, match="partitioned"):
            model[0].weight.data_ptr()
    with pytest.raises(zerorun.UserError, match="without an optimizer"):
        engine.step()
    loss = engine(torch.ones(2, 6)).sum()
    with pytest.raises(zerorun.UserError, match="without an optimizer"):
        engine.backward(loss)
    engine.zero_grad()
    engine.save_16bit_model(tmp_path)
    trained = make(stage)
    step(trained)
    trained.save_checkpoint(tmp_path)
    engine.load_checkpoint(tmp_path)
    with torch.no_grad():
        assert torch.equal(engine(torch.ones(2, 6)), trained(torch.ones(2, 6)))
    if "optimizer" not in conf:  # gradients for the program itself, as without an engine
        plain = net()
        plain.load_state_dict({key: value.clone() for key, value in model.state_dict().items()})
        for of in (engine, plain):
            of(torch.ones(2, 6)).pow(2).mean().backward()
        for a, b in zip(model.parameters(), plain.parameters()):
            assert torch.equal(a.grad, b.grad)


def test_weight_decay_changed_before_a_checkpoint_is_loaded(tmp_path):
    def made():
        return with_client(kind=lambda p: torch.optim.SGD(p, lr=0.1, weight_decay=0.0))

    engine, _ = made()
    step(engine)
    engine.save_checkpoint(tmp_path)
    losses = []
    for before in (True, False):
        engine, client = made()
        if before:
            client.param_groups[0]["weight_decay"] = 5.0
        engine.load_checkpoint(tmp_path)
        client.param_groups[0]["weight_decay"] = 5.0
        losses.append([step(engine), step(engine)])
    assert losses[0] == losses[1]


def test_many_groups_ask_the_engine_once():
    model = net()
    engine = zerorun.initialize(model=model, config=PLAIN, optimizer=torch.optim.AdamW(
        [{"params": [parameter], "lr": 0.01} for parameter in model.parameters()]))[0]
    asked, core = [], engine._core

    class Counted:
        def __getattr__(self, name):
            if name == "get_lr":
                asked.append(name)
            return getattr(core, name)

    engine._core = Counted()
    engine.optimizer.push()
    assert len(asked) == 1


def test_hooks_of_the_optimizer_are_refused():
    def hooked(parameters):
        optimizer = torch.optim.AdamW(parameters)
        optimizer.register_step_post_hook(lambda *arguments: None)
        return optimizer

    with pytest.raises(zerorun.UserError, match="hook on its step"):
        with_client(kind=hooked)
    _, client = with_client()
    for name in ("register_step_pre_hook", "register_step_post_hook"):
        with pytest.raises(zerorun.UserError, match=f"optimizer.{name}"):
            getattr(client, name)(lambda *arguments: None)
