"""What programs do to gradients that the engine has taken, and to a model and optimizer that it trains: it reaches the engine,
or is refused by name."""

import pytest
import torch
import zerorun
from small import loss_of, make, net, step, with_client

ALL = pytest.mark.parametrize("stage", [0, 1, 2, 3])


def empty(engine):
    for parameter in engine.module.parameters():
        parameter.grad = None


DROPS = {
    "module": lambda engine, client: engine.module.zero_grad(),
    "module, zeros": lambda engine, client: engine.module.zero_grad(set_to_none=False),
    "client": lambda engine, client: client.zero_grad(),
    "client, zeros": lambda engine, client: client.zero_grad(set_to_none=False),
    "returned": lambda engine, client: engine.optimizer.zero_grad(),
    "engine": lambda engine, client: engine.zero_grad(),
    "parameters": lambda engine, client: empty(engine),
    "layers": lambda engine, client: [layer.zero_grad() for layer in engine.module],
}


@ALL
def test_every_way_to_drop_gradients(stage):
    expected = make(stage)
    expected = [step(expected), step(expected)]
    for name, drop in DROPS.items():
        for plain in (False, True):
            engine, client = with_client(stage, kind=lambda p: torch.optim.AdamW(p, lr=0.01, weight_decay=0.0))
            engine.backward(loss_of(engine) * 100)
            losses = []
            for _ in range(2):
                loss = loss_of(engine)
                drop(engine, client)
                loss.backward() if plain else engine.backward(loss)
                engine.step()
                losses.append(loss.item())
                assert all(parameter.grad is None for parameter in engine.module.parameters())
            assert losses == expected, (name, plain)


@ALL
def test_dropped_between_micro_steps(stage, tmp_path, capfd):
    """The optimizer step comes where it would without the drop, with the gradients that are left. One warning says so."""
    for name, drop in DROPS.items():
        engine, client = with_client(stage, gradient_accumulation_steps=2)
        capfd.readouterr()
        for _ in range(8):
            drop(engine, client)
            engine.backward(loss_of(engine))
            engine.step()
        assert engine.global_steps == 4, name
        assert capfd.readouterr().err.count("between the micro-steps") == 1, name
        drop(engine, client)
        engine.backward(loss_of(engine))
        engine.step()
        drop(engine, client)
        engine.save_checkpoint(tmp_path / name)
        engine.load_checkpoint(tmp_path / name)
        engine.backward(loss_of(engine))
        engine.step()
        assert engine.global_steps == 5, name


def test_a_step_after_all_gradients_are_dropped():
    engine = make(2)
    engine.backward(loss_of(engine))
    engine.module.zero_grad()
    with pytest.raises(zerorun.UserError, match="the program has dropped its gradients"):
        engine.step()
    step(engine)


@ALL
def test_data_given_to_a_mark(stage):
    engine, twin = make(stage), make(stage)
    for plain in (True, False):
        engine.backward(loss_of(engine))
        for parameter in engine.module.parameters():
            parameter.grad.data = torch.ones(parameter.shape)
        junk = [torch.randn(16, 6) for _ in range(100)]  # reuses memory that was freed too early
        loss = loss_of(engine)
        with pytest.raises(RuntimeError if plain else zerorun.UserError, match="has set grad"):
            loss.backward() if plain else engine.backward(loss)
        del junk
        engine.zero_grad()
        assert step(engine) == step(twin)


@ALL
def test_a_mark_of_an_earlier_window_is_no_gradient(stage):
    engine = make(stage)
    engine.backward(loss_of(engine))
    saved = [parameter.grad for parameter in engine.module.parameters()]
    engine.module.zero_grad()
    engine.backward(loss_of(engine))
    for parameter, mark in zip(engine.module.parameters(), saved):
        parameter.grad = mark
    with pytest.raises(zerorun.UserError, match="has set grad"):
        engine.step()


@ALL
def test_parameters_without_a_gradient_have_no_mark(stage):
    model = net()
    model.add_module("unused", torch.nn.Linear(2, 2))
    engine = make(stage, model, gradient_accumulation_steps=2)
    layers = list(model)[:3]
    for _ in range(4):
        engine.backward(torch.nn.Sequential(*layers)(torch.ones(2, 6)).pow(2).mean())
        names = [name for name, parameter in model.named_parameters() if parameter.grad is not None]
        assert names == ["0.weight", "0.bias", "2.weight", "2.bias"]
        torch.nn.Sequential(*layers).zero_grad()  # drops all that there are
        engine.backward(torch.nn.Sequential(*layers)(torch.ones(2, 6)).pow(2).mean())
        engine.step()
    assert engine.global_steps == 2


def test_zeroed_rows_are_refused():
    engine = make(2, torch.nn.Sequential(torch.nn.Embedding(5, 3)))
    engine.backward(engine(torch.tensor([0, 1])).pow(2).sum())
    with pytest.raises(RuntimeError, match="zero_.*safe_set_full_grad"):
        engine.module[0].weight.grad[:1].zero_()
    engine.step()


@ALL
def test_an_error_in_a_plain_backward_does_not_block_what_follows(stage):
    def refused(engine):
        with pytest.raises(RuntimeError) as error:
            loss_of(engine).backward()
        return str(error.value)

    twin = make(stage)
    expected = [step(twin) for _ in range(3)]
    engine = make(stage)
    engine.set_gradient_accumulation_boundary(True)
    losses = []
    for _ in range(3):
        loss = loss_of(engine)
        loss.backward()
        assert "second backward" in refused(engine)  # which leaves the first one as it was
        engine.step()
        losses.append(loss.item())
    assert losses == expected

    engine = make(stage)
    engine.module[2].bias.grad = torch.ones(3)
    assert "has set grad() of parameter 2.bias" in refused(engine)
    empty(engine)  # what the error says
    loss_of(engine).backward()
    engine.step()
    assert [step(engine), step(engine)] == expected[1:]


@ALL
@pytest.mark.parametrize("layer", [0, 2])
@pytest.mark.parametrize("name", ["weight", "bias"])
def test_a_hook_that_raises_once(stage, layer, name):
    twin = make(stage)
    expected = [step(twin) for _ in range(3)]
    for plain in (False, True):
        for after in ("plain", "engine", "zero_grad"):
            raises = []

            def hook(parameter):
                if raises:
                    raises.clear()
                    raise ValueError("of the program")

            model = net()
            getattr(model[layer], name).register_post_accumulate_grad_hook(hook)
            engine = make(stage, model)
            raises.append(True)
            loss = loss_of(engine)
            with pytest.raises(ValueError):
                loss.backward() if plain else engine.backward(loss)
            if after == "zero_grad":
                engine.zero_grad()
            if after == "plain":
                loss = loss_of(engine)
                loss.backward()
                engine.step()
                assert [loss.item(), step(engine), step(engine)] == expected, (plain, after)
            else:
                assert [step(engine) for _ in range(3)] == expected, (plain, after)


@ALL
def test_a_hook_that_is_set_after_initialize(stage):
    twin = make(stage)
    expected = [step(twin) for _ in range(4)]
    for plain in (False, True):
        engine, seen = make(stage), []

        def see(parameter, seen=seen):
            seen.append(tuple(parameter.grad.shape))

        def late(gradient, parameter=engine.module[2].bias, see=see):  # before that gradient is accumulated
            if parameter._post_accumulate_grad_hooks is None:
                parameter.register_post_accumulate_grad_hook(see)

        handle = engine.module[0].weight.register_post_accumulate_grad_hook(see)
        engine.module[2].bias.register_hook(late)
        losses = []
        for number in range(4):
            if number == 2:
                handle.remove()
            loss = loss_of(engine)
            loss.backward() if plain else engine.backward(loss)
            engine.step()
            losses.append(loss.item())
        assert losses == expected, plain
        assert sorted(seen) == [(3,)] * 4 + [(16, 6)] * 2


@ALL
def test_a_hook_that_removes_its_gradient_is_refused(stage):
    engine = make(stage)
    engine.module[2].bias.register_post_accumulate_grad_hook(lambda parameter: setattr(parameter, "grad", None))
    with pytest.raises(RuntimeError, match="2.bias was removed by a hook"):
        engine.backward(loss_of(engine))


@ALL
def test_what_cannot_reach_the_engine_is_refused(stage):
    def refused(match, *changes, error=zerorun.UserError):
        engine = make(stage)
        engine.backward(loss_of(engine))
        with pytest.raises(error, match=match):
            for change in changes:
                change(engine.module)
            engine.step()
        engine.zero_grad()
        step(engine)

    refused("dropped the gradient of parameter .*2.bias", lambda m: m[2].zero_grad())
    refused("set grad.. of parameter 0.bias", lambda m: setattr(m[0].bias, "grad", torch.ones(16)))
    refused("gradient_clipping", lambda m: torch.nn.utils.clip_grad_norm_(m.parameters(), 1), error=RuntimeError)
    refused("gradient_clipping", lambda m: torch.nn.utils.clip_grad_value_(m.parameters(), 1), error=RuntimeError)
    refused("safe_get_full_grad", lambda m: print(m[0].weight.grad.norm()), error=RuntimeError)
    refused("safe_get_full_grad", lambda m: m[0].weight.grad.mul_(0.5), error=RuntimeError)


@ALL
def test_unfrozen_after_initialize(stage):
    model = net()
    model[0].requires_grad_(False)
    engine = make(stage, model)  # the bias is outside of buckets at every stage below 3
    model[0].bias.requires_grad_(True)
    engine.backward(loss_of(engine))
    with pytest.raises(zerorun.UserError, match="0.bias was unfrozen"):
        engine.step()
    model[0].bias.requires_grad_(False)
    engine.step()


def test_an_error_leaves_no_gradients_behind():
    engine, twin = make(2), make(2)
    with pytest.raises(RuntimeError):
        loss_of(engine).backward(torch.ones(3))
    engine.set_gradient_accumulation_boundary(True)
    engine.backward(loss_of(engine))
    with pytest.raises(zerorun.UserError, match="second backward"):
        engine.backward(loss_of(engine))
    engine.zero_grad()
    assert [step(engine) for _ in range(2)] == [step(twin) for _ in range(2)]


@ALL
def test_accumulation_without_step_between(stage):
    """As Accelerate does it."""
    engine, twin = make(stage, gradient_accumulation_steps=2), make(stage, gradient_accumulation_steps=2)
    for _ in range(2):
        for last in (False, True):
            engine.set_gradient_accumulation_boundary(last)
            engine.backward(loss_of(engine))
            twin.backward(loss_of(twin))
            twin.step()
        engine.step()
    for a, b in zip(engine.module.parameters(), twin.module.parameters()):
        torch.testing.assert_close(a.clone(), b.clone(), rtol=1e-6, atol=1e-7)


class Failing(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return x.clone()

    @staticmethod
    def backward(ctx, gradient):
        raise ZeroDivisionError("of the program")


@ALL
@pytest.mark.parametrize("plain", [False, True])
def test_a_backward_that_throws_among_gradients_of_earlier_ones(stage, plain):
    for drop in DROPS.values():
        (engine, client), (twin, of_twin) = (with_client(stage, gradient_accumulation_steps=4) for _ in range(2))
        for each in (engine, twin):
            step(each)
            step(each)
        loss = engine.module[2](Failing.apply(engine.module[0](torch.ones(2, 6)))).sum()
        with pytest.raises(ZeroDivisionError, match="of the program"):
            loss.backward() if plain else engine.backward(loss)
        for call in (lambda: engine.backward(loss_of(engine)), lambda: loss_of(engine).backward(), engine.step):
            with pytest.raises((zerorun.UserError, RuntimeError), match="drop them all with engine.zero_grad"):
                call()
        drop(engine, client)
        drop(twin, of_twin)
        for each in (engine, twin):
            for _ in range(6):
                step(each)
        assert engine.global_steps == 2 and all(map(torch.equal, engine.module.parameters(), twin.module.parameters()))


@pytest.mark.parametrize("stage", [0, 1, 2, 3])
def test_memory_given_to_a_gathered_parameter(stage, tmp_path):
    """parameter.data = ... counts where a modifier rank is given; what the program must not do leaves the engine usable."""
    engine, plain = make(stage), make(stage)
    new = torch.randn(16, 6)
    for weight in (engine.module[0].weight, plain.module[0].weight):
        with zerorun.zero.GatheredParameters([weight], modifier_rank=0):
            if weight is engine.module[0].weight:
                weight.data = new.t().contiguous().t()
                assert torch.equal(weight, new)
            else:
                weight.data.copy_(new)
    weight = engine.module[0].weight
    with zerorun.zero.GatheredParameters([weight]):
        assert torch.equal(weight, new) and weight.data_ptr() != new.data_ptr()
    assert [step(engine) for _ in range(2)] == [step(plain) for _ in range(2)]

    def gives(data, **more):
        with zerorun.zero.GatheredParameters([weight], **more):
            weight.data = data

    for match, data, more in (("0.weight has got other memory .* modifier", torch.zeros(16, 6), {}),
                              (r"0.weight is \[16, 6\] of Float and has got \[6, 16\]", torch.zeros(6, 16), {"modifier_rank": 0}),
                              ("has got .* of Half", torch.zeros(16, 6, dtype=torch.float16), {"modifier_rank": 0})):
        with pytest.raises(zerorun.UserError, match=match):
            gives(data, **more)
    with pytest.raises(ZeroDivisionError):
        with zerorun.zero.GatheredParameters([weight], modifier_rank=0):
            weight.data = torch.zeros(16, 6)
            raise ZeroDivisionError
    engine.backward(loss_of(engine))
    with pytest.raises(zerorun.UserError, match="on grad"):
        gives(weight.grad, modifier_rank=0)  # which has no values
    engine.step()
    step(plain)
    assert step(engine) == step(plain)
    with zerorun.zero.GatheredParameters([weight], modifier_rank=0):
        weight.data = torch.zeros(16, 6)
        engine.backward(loss_of(engine))
    with pytest.raises(zerorun.UserError, match="0.weight had other memory .* during a backward"):
        engine.step()
    engine.zero_grad()
    step(engine)
    engine.save_checkpoint(tmp_path)


@pytest.mark.parametrize("stage", [0, 1, 2, 3])
def test_sparse_gradients(stage):
    """Embedding(sparse=True) is as a dense one."""

    class Bag(torch.nn.Module):
        def __init__(self, sparse):
            super().__init__()
            torch.manual_seed(1)
            self.table, self.head = torch.nn.Embedding(20, 4, sparse=sparse), torch.nn.Linear(4, 2)

        def forward(self, x):
            return self.head(self.table(x)).square().mean()

    def losses(sparse):
        engine = make(stage, Bag(sparse))
        result = []
        for index in range(4):
            loss = engine(torch.tensor([[1, 1, 5], [index, 7, 1]]))
            loss.backward() if index % 2 else engine.backward(loss)
            engine.step()
            result.append(loss.item())
        return result, [parameter.clone() for parameter in engine.module.parameters()]

    found, expected = losses(True), losses(False)
    assert found[0] == expected[0] and all(map(torch.equal, found[1], expected[1]))
