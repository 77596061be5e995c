"""The model and the data of lora_loop.py."""

import peft
import torch
import transformers


def make_model(reentrant):
    torch.manual_seed(5)
    model = transformers.GPT2LMHeadModel(transformers.GPT2Config(
        n_layer=2, n_embd=32, n_head=2, vocab_size=64, n_positions=16, resid_pdrop=0, embd_pdrop=0, attn_pdrop=0))
    model = peft.get_peft_model(model, peft.LoraConfig(r=4, lora_alpha=8, target_modules=["c_attn"], lora_dropout=0.0,
                                                       fan_in_fan_out=True))
    model.enable_input_require_grads()
    model.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": reentrant})
    return model.train()


def batch(number):
    return torch.randint(0, 64, (2, 16), generator=torch.Generator().manual_seed(number))
