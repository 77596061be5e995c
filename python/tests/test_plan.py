"""zerorun.plan(): its answer against what an engine counts, and against torch's own reports of memory."""

import pytest
import torch
import zerorun

WIDTH, ROWS = 32, 16


class Block(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.norm = torch.nn.LayerNorm(WIDTH)
        self.attention = torch.nn.Linear(WIDTH, 3 * WIDTH)
        self.up, self.down = torch.nn.Linear(WIDTH, 4 * WIDTH), torch.nn.Linear(4 * WIDTH, WIDTH)

    def forward(self, x):
        query, key, value = (part.unflatten(-1, (4, -1)).transpose(1, 2) for part in self.attention(self.norm(x)).chunk(3, -1))
        attended = torch.nn.functional.scaled_dot_product_attention(query, key, value, is_causal=True)
        x = x + attended.transpose(1, 2).flatten(2)
        return x + self.down(torch.nn.functional.gelu(self.up(x)))


class Model(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.words, self.places = torch.nn.Embedding(64, WIDTH), torch.nn.Embedding(24, WIDTH)
        self.layers = torch.nn.ModuleList(Block() for _ in range(3))
        self.register_buffer("scale", torch.ones(()))  # no dimensions: bf16 times it is bf16

    def forward(self, tokens):
        x = self.words(tokens) + self.places(torch.arange(tokens.shape[1])) * self.scale
        for layer in self.layers:
            x = layer(x)
        logits = x @ self.words.weight.T
        return torch.nn.functional.cross_entropy(logits.float().flatten(0, 1), tokens.flatten())


def config(stage, bf16=False, **more):
    return {"train_micro_batch_size_per_gpu": ROWS, "optimizer": {"type": "AdamW", "params": {"lr": 1e-3}}, "bf16": {"enabled": bf16},
            "zero_optimization": {"stage": stage, "stage3_param_persistence_threshold": 0}, **more}


def tokens():
    return torch.arange(ROWS * 24).remainder(64).view(ROWS, 24)


def peak_of_step(engine):
    """The most bytes that torch's allocator has given out at a time in a forward and backward."""
    # oneDNN copies the operands of products in bf16 while it computes them, for each thread, which no plan knows.
    with (torch.backends.mkldnn.flags(enabled=False),
          torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU], profile_memory=True) as profile):
        engine.backward(engine(tokens()))
    engine.step()
    events = [event for event in profile.profiler.kineto_results.events() if event.name() == "[memory]"]
    held = peak = 0
    for event in sorted(events, key=lambda event: event.start_ns()):
        held += event.nbytes()
        peak = max(peak, held)
    return peak


@pytest.mark.parametrize("stage, bf16, more", [(0, False, {}), (1, True, {}), (2, False, {"zerorun": {"recompute": {"every": 1}}}),
                                               (3, True, {"zerorun": {"recompute": {"every": 2}}}), (3, False, {})])
def test_against_an_engine(stage, bf16, more):
    model = Model()
    before = [parameter.data_ptr() for parameter in model.parameters()]
    settings = config(stage, bf16, **more)
    plan = zerorun.plan(model, settings, loss=lambda model, batch: model(batch), batch=tokens(), others=False)
    assert [parameter.data_ptr() for parameter in model.parameters()] == before
    assert "forward" not in model.layers[0].__dict__
    engine, *_ = zerorun.initialize(model=model, config=settings)
    peaks = [peak_of_step(engine) for _ in range(3)]
    measured = engine.bytes_by_category()
    engine.destroy()
    planned = plan["rank"]["bytes"]
    assert 0.95 * max(peaks[1:]) <= planned["activations"] <= 1.05 * max(peaks[1:])
    for category in ("parameters", "gradients", "master", "moments", "buffers"):
        assert planned[category] == pytest.approx(measured[category], rel=0.01), category


def test_models_without_values():
    expected = zerorun.plan(Model(), config(3), loss=lambda model, batch: model(batch), batch=tokens(), world=64, hosts=8, device="cuda",
                            memory="1K")
    assert not expected["fits"] and expected["rank"]["bytes"]["activations"] > 0 and len(expected["other_world_sizes"]) == 5
    with zerorun.zero.Init():
        deferred = Model()
    with torch.device("meta"):
        on_meta = Model()
    for model in (deferred, on_meta):
        assert expected == zerorun.plan(model, config(3), loss=lambda model, batch: model(batch), batch=tokens(), world=64, hosts=8,
                                        device="cuda", memory="1K")
    assert on_meta.scale.is_meta
    engine, *_ = zerorun.initialize(model=deferred, config=config(3))  # its values are still to be made
    assert torch.isfinite(engine(tokens()))
    engine.destroy()


def test_what_is_not_known():
    model = Model()
    plan = zerorun.plan(model, config(1))
    assert plan["rank"]["bytes"]["activations"] is None and "unknown_activations" not in plan
    plan = zerorun.plan(model, config(1), loss=lambda model, batch: model(batch) * batch.sum().item(), batch=tokens())
    assert plan["rank"]["bytes"]["activations"] is None and "item" in plan["unknown_activations"]

    def interrupted(model, batch):
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        zerorun.plan(model, config(1), loss=interrupted)
    sgd = torch.optim.SGD(model.parameters(), lr=0.1)
    settings = config(0)
    del settings["optimizer"]
    assert zerorun.plan(model, settings, optimizer=sgd)["rank"]["bytes"]["moments"] == 0
    with pytest.raises(zerorun.UserError, match="do not divide among 3 hosts"):
        zerorun.plan(model, config(1), world=4, hosts=3)


def layers():
    class Head(torch.nn.Linear):
        def forward(self, x):
            return super().forward(x).float().flatten(0, 1)

    return [torch.nn.Embedding(64, WIDTH), *(Block() for _ in range(3)), Head(WIDTH, 64, bias=False)]


def loss_of(logits, labels):
    return torch.nn.functional.cross_entropy(logits, labels.flatten())


@pytest.mark.parametrize("interval", [0, 1])
def test_a_pipeline(interval):
    from zerorun.pipe import PipelineModule

    whole = PipelineModule(layers(), num_stages=1, loss_fn=loss_of, partition_method="uniform", activation_checkpoint_interval=interval)
    before = [parameter.data_ptr() for parameter in whole.parameters()]
    settings = config(1, train_batch_size=ROWS * 4)  # two micro-batches on two data ranks
    plan = zerorun.plan(whole, settings, batch=(tokens(), tokens()), world=4, mesh={"pipeline": 2}, others=False)
    assert [parameter.data_ptr() for parameter in whole.parameters()] == before
    # Stage 0 has the embedding and two blocks, stage 1 a block and the head.
    memory = plan["rank"]["memory_by_stage"]
    assert len(memory) == 2 and plan["rank"]["bytes"]["memory"] == max(memory) == memory[0]
    parameters = sum(parameter.nbytes for layer in list(whole.forward_funcs)[:3] for parameter in layer.parameters())
    assert plan["rank"]["bytes"]["parameters"] == pytest.approx(parameters / 2, rel=0.01)  # the ranks of a host share them
    assert plan["rank"]["sent_per_step"]["pass"]["bytes"] == 2 * ROWS * 24 * WIDTH * 4
    # It keeps two micro-batches of activations, those of its own layers as a plan without stages has them.
    alone = zerorun.plan(torch.nn.Sequential(*whole.forward_funcs[:3]), config(1), loss=lambda model, batch: model(batch).sum(), batch=tokens(),
                         others=False)["rank"]["bytes"]["activations"]
    held = plan["rank"]["bytes"]["activations"]
    assert (1.5 if interval == 0 else 0.2) * alone < held < (2.2 if interval == 0 else 1.2) * alone
    with pytest.raises(zerorun.UserError, match="needs a loss_fn, and batch"):
        zerorun.plan(whole, settings, world=4, mesh={"pipeline": 2})
