"""Computes logits and trains models with transformers. transformers_test compares the results with ZeroRun's.

usage: transformers_check.py logits FOLDER
         Loads the GPT-2 in FOLDER/model and writes FOLDER/logits.safetensors; then makes another GPT-2 and writes it
         to FOLDER/back, FOLDER/back_sharded and FOLDER/back_bf16, with its logits.
       transformers_check.py start FOLDER
         Makes a GPT-2, writes it to FOLDER/start, and trains it on the padded texts in FOLDER/texts.jsonl for 5 steps
         of 2 x 2 texts, with a mean over each pair, as two ranks do. Writes FOLDER/padded.safetensors: the batches'
         tokens and masks, the first model's logits, the losses, and the trained model's logits.
       transformers_check.py trained FOLDER
         Writes the logits of the GPT-2 in FOLDER/trained to FOLDER/trained.safetensors.
"""
import json
import sys

import torch
from safetensors.torch import load_file, save_file
from transformers import GPT2Config, GPT2LMHeadModel

LENGTH, STEPS, TEXTS, PAIR = 24, 5, 4, 2

mode, folder = sys.argv[1:]


def load(name):
    return GPT2LMHeadModel.from_pretrained(f"{folder}/{name}", dtype=torch.float32)


def logits_of(model, **inputs):
    with torch.no_grad():
        return model.eval()(**inputs).logits.contiguous()


def logits():
    tokens = load_file(f"{folder}/tokens.safetensors")["tokens"]
    model = load("model")
    save_file({"logits": logits_of(model, input_ids=tokens)}, f"{folder}/logits.safetensors")

    torch.manual_seed(7)
    other = GPT2LMHeadModel(GPT2Config.from_pretrained(f"{folder}/model"))
    save_file({"logits": logits_of(other, input_ids=tokens)}, f"{folder}/back_logits.safetensors")
    other.save_pretrained(f"{folder}/back")
    other.save_pretrained(f"{folder}/back_sharded", max_shard_size="100KB")
    rounded = other.to(torch.bfloat16)
    rounded.save_pretrained(f"{folder}/back_bf16")
    save_file({"logits": logits_of(rounded.float(), input_ids=tokens)}, f"{folder}/back_bf16_logits.safetensors")


def padded_texts():
    with open(f"{folder}/texts.jsonl", encoding="utf-8") as lines:
        texts = [json.loads(line)["text"].encode()[:LENGTH] for line in lines]
    texts = texts[:STEPS * TEXTS]
    tokens = torch.tensor([list(text) + [0] * (LENGTH - len(text)) for text in texts])
    mask = torch.tensor([[1] * len(text) + [0] * (LENGTH - len(text)) for text in texts])
    return tokens, mask


def start():
    torch.manual_seed(11)
    model = GPT2LMHeadModel(GPT2Config(n_layer=2, n_embd=64, n_head=4, vocab_size=300, n_positions=32, bos_token_id=0,
                                       eos_token_id=0, attn_pdrop=0.0, embd_pdrop=0.0, resid_pdrop=0.0))
    model.save_pretrained(f"{folder}/start")
    tokens, mask = padded_texts()
    found = {"tokens": tokens, "mask": mask, "start": logits_of(model, input_ids=tokens, attention_mask=mask)}
    model.train()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, betas=(0.9, 0.999), eps=1e-6, weight_decay=0.01)
    losses = []
    for step in range(STEPS):
        pairs = range(step * TEXTS, (step + 1) * TEXTS, PAIR)
        total = 0.0
        for first in pairs:
            ids, seen = tokens[first:first + PAIR], mask[first:first + PAIR]
            loss = model(input_ids=ids, attention_mask=seen, labels=ids.masked_fill(seen == 0, -100)).loss / len(pairs)
            loss.backward()
            total += loss.item()
        losses.append(total)
        optimizer.step()
        optimizer.zero_grad()
    found["losses"] = torch.tensor(losses)
    found["trained"] = logits_of(model, input_ids=tokens, attention_mask=mask)
    save_file(found, f"{folder}/padded.safetensors")


def trained():
    padded = load_file(f"{folder}/padded.safetensors")
    found = logits_of(load("trained"), input_ids=padded["tokens"], attention_mask=padded["mask"])
    save_file({"logits": found}, f"{folder}/trained.safetensors")


{"logits": logits, "start": start, "trained": trained}[mode]()
