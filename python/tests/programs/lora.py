"""PEFT's LoRA on transformers' GPT-2 with recomputation, beside plain torch on the batches of all ranks: lora.py STAGE..."""

import sys

import peft
import torch
import transformers

import zerorun
from small import config


def make_model():
    torch.manual_seed(5)
    model = transformers.GPT2LMHeadModel(transformers.GPT2Config(
        n_layer=2, n_embd=32, n_head=2, vocab_size=64, n_positions=16, resid_pdrop=0, embd_pdrop=0, attn_pdrop=0))
    model = peft.get_peft_model(model, peft.LoraConfig(r=4, lora_alpha=8, target_modules=["c_attn"], lora_dropout=0.0,
                                                       fan_in_fan_out=True))
    model.enable_input_require_grads()
    model.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})
    return model.train()


def make_optimizer(model):
    return torch.optim.AdamW([p for p in model.parameters() if p.requires_grad], lr=1e-2)


def loss_of(model, step, rank):
    tokens = torch.randint(0, 64, (2, 16), generator=torch.Generator().manual_seed(10 * step + rank))
    return model(input_ids=tokens, labels=tokens).loss


def plain_losses(rank, ranks):
    model, losses = make_model(), []
    optimizer = make_optimizer(model)
    for step in range(6):
        for other in range(ranks):
            loss = loss_of(model, step, other)
            (loss / ranks).backward()
            if other == rank:
                losses.append(loss.item())
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
    return losses


def losses_of_engine(stage):
    model, losses = make_model(), []
    given = config(stage)
    del given["optimizer"]
    engine, *_ = zerorun.initialize(model=model, optimizer=make_optimizer(model), config=given)
    assert type(engine) is zerorun.Engine
    for step in range(6):
        loss = loss_of(engine, step, engine.global_rank)
        engine.backward(loss)
        engine.step()
        losses.append(loss.item())
    return losses


zerorun.init_distributed()
expected = plain_losses(zerorun.comm.get_rank(), zerorun.comm.get_world_size())
assert len(set(expected)) == 6
for stage in map(int, sys.argv[1:]):
    torch.testing.assert_close(losses_of_engine(stage), expected, rtol=1e-5, atol=0)
