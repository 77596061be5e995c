"""Keys of the config about dtypes, Muon's heads and Python's collector."""

import gc

import pytest
import torch
import zerorun
from small import net
from test_optimizers import OwnLion
from zerorun.model_facts import attention_heads, fp32_buffers


def config(stage=1, optimizer=None, **more):
    return {"train_micro_batch_size_per_gpu": 2, "zero_optimization": {"stage": stage}, **more,
            "optimizer": optimizer or {"type": "AdamW", "params": {"lr": 0.01}}}


def start(model, **given):
    return zerorun.initialize(model=model, config=config(**given))[0]


def train(engine, steps=3):
    generator = torch.Generator().manual_seed(5)
    for _ in range(steps):
        engine.backward(engine(torch.randn(2, 6, generator=generator).to(engine.dtype)).float().square().mean())
        engine.step()


@pytest.mark.parametrize("stage", [0, 3])
def test_bf16_states(stage):
    torch.manual_seed(3)
    engine = start(net(), stage=stage, zerorun={"stochastic_rounding": True},
                   bf16={"enabled": True, "bf16_master_weights_and_grads": True, "bf16_optimizer_states": True})
    train(engine)
    taken = engine.bytes_by_category()
    assert taken["master"] == 0
    assert taken["moments"] == 2 * taken["parameters"]
    parameter = next(engine.module.parameters())
    weights = zerorun.utils.safe_get_full_fp32_param(parameter)
    assert torch.equal(weights, weights.bfloat16().float())


def test_optimizers_that_cannot_update_bf16_states():
    states = {"train_micro_batch_size_per_gpu": 2, "zero_allow_untested_optimizer": True,
              "bf16": {"enabled": True, "bf16_optimizer_states": True}}
    model = net()
    with pytest.raises(zerorun.UserError, match="name an optimizer in the config"):
        zerorun.initialize(model=model, optimizer=OwnLion(model.parameters()), config=states)
    with pytest.raises(zerorun.UserError, match="Lamb, whose step needs whole parameters"):
        zerorun.initialize(model=model, optimizer=zerorun.ops.lamb.FusedLamb(model.parameters()), config=states)
    engine = zerorun.initialize(model=model, optimizer=torch.optim.AdamW(model.parameters()), config=states)[0]
    train(engine)
    assert engine.bytes_by_category()["moments"] == 2 * engine.bytes_by_category()["parameters"]


class Router(torch.nn.Module):
    """Names two of its buffers, as transformers' models do."""

    _keep_in_fp32_modules_strict = ["correction_bias"]
    _keep_in_fp32_modules = ["scale"]

    def __init__(self):
        super().__init__()
        self.gate = torch.nn.Linear(6, 2)
        for name in ("correction_bias", "scale", "other"):
            self.register_buffer(name, torch.full((2,), 1.001))

    def forward(self, x):
        return self.gate(x)


def dtypes_of_buffers(model, **given):
    start(model, **given)
    return {name.rpartition(".")[2]: buffer.dtype for name, buffer in model.named_buffers()}


def test_buffers_that_a_model_names_stay_fp32():
    wide, narrow, half = torch.float32, torch.bfloat16, torch.float16
    assert fp32_buffers(Router()) == (["correction_bias"], ["scale"])
    assert fp32_buffers(torch.nn.Sequential(Router()))[0] == ["0.*correction_bias"]
    found = dtypes_of_buffers(torch.nn.Sequential(Router()), bf16={"enabled": True}, data_types={"buffer_dtype": "bf16"})
    assert found == {"correction_bias": wide, "scale": narrow, "other": narrow}
    found = dtypes_of_buffers(Router(), fp16={"enabled": True},
                              data_types={"buffer_dtype": "fp16", "keep_in_fp32_modules": "auto"})
    assert found == {"correction_bias": wide, "scale": wide, "other": half}
    found = dtypes_of_buffers(Router(), bf16={"enabled": True},
                              data_types={"buffer_dtype": "bf16", "keep_in_fp32_modules": ["o*her"]})
    assert found == {"correction_bias": narrow, "scale": narrow, "other": wide}
    found = dtypes_of_buffers(Router(), bf16={"enabled": True},
                              data_types={"buffer_dtype": "bf16", "keep_in_fp32_modules": []})
    assert set(found.values()) == {narrow}


def test_heads_of_a_transformers_model():
    transformers = pytest.importorskip("transformers")
    torch.manual_seed(1)
    model = transformers.LlamaForCausalLM(transformers.LlamaConfig(
        vocab_size=32, hidden_size=16, intermediate_size=24, num_hidden_layers=1, num_attention_heads=4,
        num_key_value_heads=2, max_position_embeddings=16))
    layer = "model.layers.0.self_attn."
    assert attention_heads(model) == {layer + "q_proj.weight": 4, layer + "k_proj.weight": 2, layer + "v_proj.weight": 2}
    assert attention_heads(net()) == {}
    before = {name: parameter.detach().clone() for name, parameter in model.named_parameters()}
    tokens = torch.randint(32, (2, 8), generator=torch.Generator().manual_seed(2))
    model(input_ids=tokens, labels=tokens).loss.backward()
    gradients = {name: parameter.grad.clone() for name, parameter in model.named_parameters()}
    model.zero_grad()
    engine = start(model, gradient_clipping=0, optimizer={"type": "Muon", "params": {"lr": 0.02, "momentum": 0.0, "per_head_muon": True,
                                                                "ns_method": "standard"}})
    engine.backward(engine(input_ids=tokens, labels=tokens).loss)
    engine.step()
    for name, heads in attention_heads(model).items():
        step = (before[name] - dict(model.named_parameters())[name].detach()) / 0.02
        parts = [orthogonal(head) for head in gradients[name].double().chunk(heads)]
        assert torch.allclose(step.double(), torch.cat(parts), atol=1e-4)


def orthogonal(head):
    """Newton and Schulz's iteration on the singular values."""
    u, s, v = torch.linalg.svd(head, full_matrices=False)
    s = s / (head.norm() + 1e-7)
    for _ in range(5):
        s = 3.4445 * s - 4.7750 * s**3 + 2.0315 * s**5
    return (u * s) @ v * max(1.0, head.shape[0] / head.shape[1]) ** 0.5


def test_per_head_muon_without_heads():
    with pytest.raises(zerorun.UserError, match="no matrix of the model has attention heads"):
        start(net(), optimizer={"type": "Muon", "params": {"lr": 0.02, "per_head_muon": True}})


def test_the_collector_is_off_while_an_engine_lives():
    assert gc.isenabled()
    first, second = (start(net(), disable_python_gc=True) for _ in range(2))
    assert not gc.isenabled()
    train(first)
    assert first.collect_python_gc() >= 0
    first.destroy()
    assert not gc.isenabled()
    second.destroy()
    assert gc.isenabled()
    third = start(net(), disable_python_gc=True)
    del third
    gc.collect()
    assert gc.isenabled()
    gc.disable()
    try:
        start(net(), disable_python_gc=True).destroy()
        assert not gc.isenabled()  # as the program had it
    finally:
        gc.enable()
