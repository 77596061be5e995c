"""zerorun.recompute for Python modules, and torch_autocast: the bits of a run without recomputation, and plain torch's losses."""

import pytest
import torch
import zerorun


class Layer(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = torch.nn.Linear(6, 6)
        self.forwards = 0

    def forward(self, x, *, scale=1.0):
        self.forwards += 1
        return x + torch.nn.functional.dropout(torch.tanh(self.linear(x)), 0.2, self.training) * scale


class Model(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = torch.nn.ModuleList(Layer() for _ in range(4))
        self.head = torch.nn.Linear(6, 1)

    def forward(self, x):
        for layer in self.layers:
            x = layer(x, scale=0.5)
        return self.head(x).square().mean()


def config(stage, **more):
    return {"train_micro_batch_size_per_gpu": 1, "optimizer": {"type": "SGD", "params": {"lr": 0.1}}, "gradient_clipping": 0,
            "zero_optimization": {"stage": stage, "stage3_param_persistence_threshold": 0}, **more}


def train(settings, steps=3):
    torch.manual_seed(3)
    model = Model()
    engine, *_ = zerorun.initialize(model=model, config=settings)
    losses = []
    for step in range(steps):
        loss = engine(torch.full((3, 6), 0.1 * (step + 1)))
        engine.backward(loss)
        engine.step()
        losses.append(loss.item())
    forwards = [layer.forwards for layer in model.layers]
    engine.destroy()
    return losses, forwards, model


@pytest.mark.parametrize("stage", [0, 1, 2, 3])
@pytest.mark.parametrize("recompute, twice", [({"every": 1}, [1, 1, 1, 1]), ({"every": 2}, [1, 0, 1, 0]),
                                              ({"patterns": ["layers.1"]}, [0, 1, 0, 0]),
                                              ({"patterns": ["layers.*.linear"]}, [0, 0, 0, 0])])
def test_same_bits(stage, recompute, twice):
    losses, forwards, model = train(config(stage, zerorun={"recompute": recompute}))
    assert losses == train(config(stage))[0]
    assert forwards == [3 + 3 * again for again in twice]
    assert "forward" not in model.layers[0].__dict__  # the engine is gone


class Wide(torch.nn.Module):
    """A layer whose operators keep 5 tensors of its hidden size for backward, and its input."""

    def __init__(self, hidden):
        super().__init__()
        self.up, self.down = torch.nn.Linear(8, hidden, bias=False), torch.nn.Linear(hidden, 8, bias=False)

    def forward(self, x):
        return self.down(torch.sin(torch.sin(torch.sin(torch.sin(self.up(x))))))


HIDDENS, ROWS = (64, 256, 128, 512), 32


def train_within(budget, stage=0, steps=3):
    torch.manual_seed(3)
    model = torch.nn.Sequential(*(Wide(hidden) for hidden in HIDDENS))
    calls = [0] * len(HIDDENS)
    for index, layer in enumerate(model):
        layer.up.register_forward_pre_hook(lambda *_, index=index: calls.__setitem__(index, calls[index] + 1))
    more = {"zerorun": {"recompute": {"budget": budget}}} if budget else {}
    engine, *_ = zerorun.initialize(model=model, config=config(stage, **more))
    losses, after_first = [], None
    for step in range(steps):
        loss = engine(torch.full((ROWS, 8), 0.1 * (step + 1))).square().mean()
        engine.backward(loss)
        engine.step()
        losses.append(loss.item())
        after_first = after_first or list(calls)
    engine.destroy()
    return losses, after_first, [(last - first) // (steps - 1) for first, last in zip(after_first, calls)]


def peak_of(kept):
    """Bytes by the formula: each block's input, and 5 tensors of ROWS x hidden of a block, fp32. Backward lets go of the last block first."""
    of_block = [5 * ROWS * hidden * 4 for hidden in HIDDENS]
    held = [sum(of_block[index] for index in kept if index <= block) + (0 if block in kept else of_block[block]) for block in range(4)]
    return 4 * ROWS * 8 * 4 + max(held)


@pytest.mark.parametrize("stage", [0, 3])
def test_a_budget_recomputes_all_and_then_as_few_as_it_allows(stage):
    losses = train_within(None, stage)[0]
    for kept in (None, [3], [0, 3], [0, 1, 2], [0, 1, 2, 3]):
        budget = str(int(1.02 * peak_of(kept)) if kept else 1000)
        found, first, later = train_within(budget, stage)
        assert found == losses
        assert first == [2] * 4
        chosen = [index for index in range(4) if later[index] == 1]
        if kept is None:
            assert chosen == []
        else:
            assert chosen and peak_of(chosen) <= 1.03 * int(budget)
        if kept == [0, 1, 2, 3]:
            assert chosen == kept


def test_activation_checkpointing_leaves_modules_as_they_are():
    losses, forwards, _ = train(config(1, activation_checkpointing={"profile": False}))
    assert forwards == [3] * 4


@pytest.mark.parametrize("recompute, text", [({"patterns": ["layer.*"]}, "'layer.*' names no module"), ({"every": 1, "nvme_path": "/tmp"}, "keeps the inputs of a Python model's modules in memory")])
def test_refusals(recompute, text):
    with pytest.raises(zerorun.UserError, match=text.replace("*", r"\*")):
        train(config(1, zerorun={"recompute": recompute}))


def test_a_budget_is_refused_for_pipelines_and_leaves_a_plans_activations_unknown():
    settings = config(1, zerorun={"recompute": {"budget": "1M"}})
    layers = zerorun.PipelineModule(layers=[torch.nn.Sequential(torch.nn.Linear(6, 6))], num_stages=1, loss_fn=torch.nn.functional.mse_loss)
    with pytest.raises(zerorun.UserError, match="set pipeline.activation_checkpoint_interval instead"):
        zerorun.initialize(model=layers, config=settings)
    plan = zerorun.plan(Model(), config=settings, loss=lambda model, batch: model(batch), batch=torch.ones(3, 6), world=1)
    assert plan["rank"]["bytes"]["activations"] is None
    assert "plan with \"every\" or \"patterns\"" in plan["unknown_activations"]


def plain(steps=3):
    torch.manual_seed(3)
    model = Model()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    losses = []
    for step in range(steps):
        with torch.autocast("cpu", torch.bfloat16):
            loss = model(torch.full((3, 6), 0.1 * (step + 1)))
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.item())
    return losses


@pytest.mark.parametrize("stage", [0, 1, 2, 3])
@pytest.mark.parametrize("recompute", [None, {"every": 1}])
def test_autocast_equals_plain_torchs(stage, recompute):
    more = {"zerorun": {"recompute": recompute}} if recompute else {}
    assert train(config(stage, torch_autocast={"enabled": True, "dtype": "bfloat16"}, **more))[0] == pytest.approx(plain(), rel=1e-6)


class ReadsAddresses(torch.autograd.Function):
    @staticmethod
    @torch.amp.custom_fwd(device_type="cpu", cast_inputs=torch.bfloat16)
    def forward(ctx, x, weight):
        ctx.save_for_backward(x, weight)
        assert weight.data_ptr() != 0
        return x @ weight.t()

    @staticmethod
    @torch.amp.custom_bwd(device_type="cpu")
    def backward(ctx, gradient):
        x, weight = ctx.saved_tensors
        assert weight.data_ptr() != 0
        return gradient @ weight, gradient.t() @ x


class Corners(torch.nn.Module):
    """Weights that are used again and again, written to in forward, read past operators, cast by the program; a GRU."""

    def __init__(self, kind):
        super().__init__()
        self.kind = kind
        self.first, self.again = torch.nn.Linear(6, 6), torch.nn.Linear(6, 6)
        self.cells = torch.nn.GRU(6, 6)
        self.scale = torch.nn.Parameter(torch.tensor(2.0))

    def forward(self, x):
        x = self.again(self.again(self.first(x)))
        if self.kind == "gru":
            x = self.cells(x.float().unsqueeze(0).expand(4, -1, -1))[0][-1]
        elif self.kind == "written":
            with torch.no_grad():
                self.scale.clamp_(0.1, 0.5)
            x = x * self.scale
        elif self.kind == "addresses":
            x = ReadsAddresses.apply(x, self.again.weight)
        elif self.kind == "cast":
            with torch.autocast("cpu", enabled=False):
                weight = self.again.weight.to(torch.bfloat16)
                x = x @ weight.mul(0.5) + self.again.weight.detach().double().mul_(2).numpy().sum()
        elif self.kind == "evaluated":
            with torch.no_grad():
                self.again(x)
        return x.float().square().mean()


@pytest.mark.parametrize("kind", ["again", "gru", "written", "addresses", "cast", "evaluated"])
def test_corners_of_autocast(kind):
    def make():
        torch.manual_seed(4)
        return Corners(kind)

    plain, losses = make(), []
    optimizer = torch.optim.SGD(plain.parameters(), lr=0.1)
    for step in range(3):
        with torch.autocast("cpu", torch.bfloat16):
            loss = plain(torch.full((3, 6), 0.1 * (step + 1)))
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.item())
    for outer in (False, True):
        engine, *_ = zerorun.initialize(model=make(), config=config(3, torch_autocast={"enabled": True}))
        with torch.autocast("cpu", torch.bfloat16, enabled=outer):
            for step in range(3):
                loss = engine(torch.full((3, 6), 0.1 * (step + 1)))
                engine.backward(loss)
                engine.step()
                assert loss.item() == pytest.approx(losses[step], rel=1e-6), (kind, outer, step)
        engine.destroy()


@pytest.mark.parametrize("stage", [0, 3])
def test_loss_without_all_logits(stage):
    """Beside torch's own functions."""
    torch.manual_seed(5)
    x, labels = torch.randn(2, 5, 6), torch.arange(10).view(2, 5).remainder(8)
    labels[0, 0] = -100
    plain, model = (torch.nn.Linear(6, 8) for _ in range(2))
    model.load_state_dict(plain.state_dict())
    optimizer = torch.optim.SGD(plain.parameters(), lr=0.1)
    engine, *_ = zerorun.initialize(model=model, config=config(stage))
    for _ in range(3):
        optimizer.zero_grad()
        expected = torch.nn.functional.cross_entropy(plain(x).view(-1, 8), labels.view(-1))
        expected.backward()
        optimizer.step()
        loss = zerorun.linear_cross_entropy(x, model.weight, labels, model.bias, tokens=3)
        engine.backward(loss)
        engine.step()
        assert loss.item() == pytest.approx(expected.item(), rel=1e-6)
    with pytest.raises(zerorun.UserError, match="expected x of sizes"):
        zerorun.linear_cross_entropy(x, model.weight, labels.view(-1))
