"""Models made under zero.Init have the values of models made without it."""

import copy

import pytest
import torch
import zerorun
from small import config, loss_of, net, step


class Patches(torch.nn.Module):
    """Multiplies and adds numbers of Python while it is built."""

    def __init__(self):
        super().__init__()
        self.position = torch.nn.Parameter(torch.randn(1, 5, 8) * 0.02)
        self.scale = torch.nn.Parameter(0.1 * torch.ones(8) + 1)
        self.mix = torch.nn.Linear(8, 8)
        torch.nn.init.trunc_normal_(self.mix.weight, std=0.02)
        torch.nn.init.trunc_normal_(self.mix.bias, a=2.0, b=3.0)  # torch 2.15 draws these in another way
        self.out = torch.nn.Linear(8, 8)
        torch.nn.init.orthogonal_(self.out.weight)
        with torch.no_grad():
            self.out.weight.mul_(0.5)
            self.mix.bias += 0.25
        self.register_buffer("frequencies", 1.0 / (10000 ** (torch.arange(0, 8, 2).float() / 8)))


def whole(model):
    return {name: tensor.detach().clone() for name, tensor in (*model.named_parameters(), *model.named_buffers())}


@pytest.mark.parametrize("stage", [0, 3])
def test_numbers_of_python(stage):
    torch.manual_seed(4)
    expected = whole(Patches())
    torch.manual_seed(4)
    with zerorun.zero.Init():
        model = Patches()
    kept = zerorun.initialize(model=model, config=config(stage))  # at stage 3 the values go with the engine
    found = whole(model)
    del kept
    assert found.keys() == expected.keys()
    assert all(torch.equal(found[name], expected[name]) for name in found)


def test_values_beside_those_of_an_engine_are_refused():
    engine = zerorun.initialize(model=net(), config=config(3))[0]
    with zerorun.zero.Init():
        other = net()
    with pytest.raises(Exception, match="tensors of an engine"):
        torch.equal(other[0].weight, engine.module[0].weight)


def test_new_tensor():
    with zerorun.zero.Init():
        model = net()
        assert torch.equal(model[0].weight.new_tensor([1, 2]), torch.tensor([1.0, 2.0]))
    engine = zerorun.initialize(model=model, config=config(3, bf16={"enabled": True}))[0]
    weight = engine.module[0].weight
    assert weight.new_tensor([1, 2]).dtype == torch.bfloat16
    assert weight.new_tensor(3, dtype=torch.int64).item() == 3
    with pytest.raises(TypeError):
        weight.new_tensor()


@pytest.mark.parametrize("name", ["llama", "qwen2", "vit"])
def test_models_of_transformers(name):
    transformers = pytest.importorskip("transformers")
    sizes = dict(hidden_size=16, num_hidden_layers=1, num_attention_heads=2, intermediate_size=16)
    text = dict(vocab_size=20, num_key_value_heads=1, max_position_embeddings=16)
    make = {
        "llama": lambda: transformers.LlamaForCausalLM(transformers.LlamaConfig(**sizes, **text)),
        "qwen2": lambda: transformers.Qwen2ForCausalLM(transformers.Qwen2Config(**sizes, **text)),
        "vit": lambda: transformers.ViTModel(transformers.ViTConfig(**sizes, image_size=8, patch_size=4)),
    }[name]
    torch.manual_seed(4)
    expected = whole(make())
    torch.manual_seed(4)
    with zerorun.zero.Init():
        model = make()
    kept = zerorun.initialize(model=model, config=config(3))
    found = whole(model)
    del kept
    assert all(torch.equal(found[key], expected[key]) for key in expected)


def test_scopes_together():
    """A scope in a scope, copies between two scopes, and reads in a gathered scope."""
    with zerorun.zero.Init():
        a = torch.nn.Linear(6, 6)
        with zerorun.zero.Init():
            inner = torch.nn.Linear(6, 6)
        c = torch.nn.Linear(6, 6)
    assert all(zerorun._core.is_deferred(layer.weight) for layer in (a, inner, c))
    with zerorun.zero.Init():
        b = torch.nn.Linear(6, 6)
    b.weight.data[:3] = a.weight.data[:3]
    with zerorun.zero.GatheredParameters([a.weight, None, b.weight]):  # None: transformers, for a head without a bias
        assert torch.equal(a.weight[:3], b.weight[:3]) and not torch.equal(a.weight, b.weight)
        b.weight.data[3:] = a.weight.data[3:].mean(0)
    model = torch.nn.Sequential(b, c)
    expected = a.weight.detach().clone()
    engine, _, _, _ = zerorun.initialize(model=model, config=config(3))
    assert torch.equal(b.weight[:3], expected[:3]) and torch.equal(b.weight[3], expected[3:].mean(0))
    step(engine)


def test_a_copy_of_a_model():
    with zerorun.zero.Init():
        model = net()
    reference = copy.deepcopy(model)
    engine, _, _, _ = zerorun.initialize(model=model, config=config(3))
    expected = net()(torch.ones(2, 6))
    assert torch.equal(reference(torch.ones(2, 6)), expected)
    step(engine)
    assert torch.equal(reference(torch.ones(2, 6)), expected) and not torch.equal(loss_of(engine), expected.pow(2).mean())


def test_initialize_in_a_scope():
    """The scopes go on behind it."""
    with zerorun.zero.Init():
        model = net()
        with zerorun.zero.Init():
            engine = zerorun.initialize(model=model, config=config(3))[0]
            inner = torch.nn.Linear(2, 2)
        outer = torch.nn.Linear(2, 2)
        with pytest.raises(zerorun.UserError, match="no config"):
            zerorun.initialize(model=outer)
        last = torch.nn.Linear(2, 2)
    assert [zerorun._core.is_deferred(layer.weight) for layer in (inner, outer, last, torch.nn.Linear(2, 2))] == [True, True, True, False]
    step(engine)


def test_a_scope_inside_itself():
    scope = zerorun.zero.Init()
    with scope:
        first = torch.nn.Linear(2, 2)
        with scope:
            second = torch.nn.Linear(2, 2)
        third = torch.nn.Linear(2, 2)
    plain = torch.nn.Linear(2, 2)
    assert [zerorun._core.is_deferred(layer.weight) for layer in (first, second, third, plain)] == [True, True, True, False]


def test_ranks_are_connected():
    """transformers asks for the rank where it loads weights in the scope."""
    if torch.distributed.is_initialized():
        torch.distributed.destroy_process_group()
    with zerorun.zero.Init(enabled=False):
        assert not torch.distributed.is_initialized()
    with zerorun.zero.Init():
        assert torch.distributed.get_rank() == 0


@pytest.mark.parametrize("name", ["BertForMaskedLM", "BertForSequenceClassification"])
def test_from_pretrained(name, tmp_path):
    """It makes the model on the device meta, and then loads weights; the second model's head is not among them."""
    transformers = pytest.importorskip("transformers")
    sizes = dict(vocab_size=20, hidden_size=16, num_hidden_layers=1, num_attention_heads=2, intermediate_size=16)
    transformers.BertForMaskedLM(transformers.BertConfig(**sizes)).save_pretrained(tmp_path)
    torch.manual_seed(4)
    expected = whole(getattr(transformers, name).from_pretrained(tmp_path))
    torch.manual_seed(4)
    with zerorun.zero.Init():
        model = getattr(transformers, name).from_pretrained(tmp_path)
    kept = zerorun.initialize(model=model, config=config(3))
    found = whole(model)
    del kept
    assert found.keys() == expected.keys()
    assert all(torch.equal(found[key], expected[key]) for key in expected)
