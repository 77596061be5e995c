"""PEFT's LoRA on transformers' GPT-2 with recomputation trains as under plain torch."""

import pytest
import torch
import zerorun
from small import config

transformers = pytest.importorskip("transformers")
peft = pytest.importorskip("peft")


def make_model():
    torch.manual_seed(5)
    model = transformers.GPT2LMHeadModel(transformers.GPT2Config(
        n_layer=2, n_embd=32, n_head=2, vocab_size=64, n_positions=16, resid_pdrop=0, embd_pdrop=0, attn_pdrop=0))
    model = peft.get_peft_model(model, peft.LoraConfig(r=4, lora_alpha=8, target_modules=["c_attn"], lora_dropout=0.0,
                                                       fan_in_fan_out=True))
    model.enable_input_require_grads()
    model.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})
    return model.train()


def batch(step):
    return torch.randint(0, 64, (2, 16), generator=torch.Generator().manual_seed(step))


@pytest.mark.parametrize("stage", [2, 3])
def test_lora(stage):
    plain, losses = make_model(), []
    optimizer = torch.optim.AdamW([p for p in plain.parameters() if p.requires_grad], lr=1e-2)
    for step in range(6):
        loss = plain(input_ids=batch(step), labels=batch(step)).loss
        loss.backward()
        torch.nn.utils.clip_grad_norm_(plain.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.item())
    model = make_model()
    given = config(stage)
    del given["optimizer"]
    optimizer = torch.optim.AdamW([p for p in model.parameters() if p.requires_grad], lr=1e-2)
    engine, *_ = zerorun.initialize(model=model, optimizer=optimizer, config=given)
    assert isinstance(engine, zerorun.Engine)
    found = []
    for step in range(6):
        loss = engine(input_ids=batch(step), labels=batch(step)).loss
        engine.backward(loss)
        engine.step()
        found.append(loss.item())
    assert found == pytest.approx(losses, rel=1e-5)
    assert len(set(found)) == 6
