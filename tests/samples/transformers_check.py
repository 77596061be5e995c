"""Loads the GPT-2 in FOLDER/model with transformers and writes FOLDER/logits.safetensors; then makes another GPT-2
and writes it to FOLDER/back, FOLDER/back_sharded and FOLDER/back_bf16, with its logits. Called by transformers_test."""
import sys

import torch
from safetensors.torch import load_file, save_file
from transformers import GPT2Config, GPT2LMHeadModel

folder = sys.argv[1]
tokens = load_file(f"{folder}/tokens.safetensors")["tokens"]


def logits_of(model):
    with torch.no_grad():
        return model.eval()(tokens).logits.contiguous()


model = GPT2LMHeadModel.from_pretrained(f"{folder}/model", dtype=torch.float32)
save_file({"logits": logits_of(model)}, f"{folder}/logits.safetensors")

torch.manual_seed(7)
config = GPT2Config.from_pretrained(f"{folder}/model")
other = GPT2LMHeadModel(config)
save_file({"logits": logits_of(other)}, f"{folder}/back_logits.safetensors")
other.save_pretrained(f"{folder}/back")
other.save_pretrained(f"{folder}/back_sharded", max_shard_size="100KB")
rounded = other.to(torch.bfloat16)
rounded.save_pretrained(f"{folder}/back_bf16")
save_file({"logits": logits_of(rounded.float())}, f"{folder}/back_bf16_logits.safetensors")
