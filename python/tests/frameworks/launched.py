"""A loop for `accelerate launch` with a YAML file that names a ds_config.json, with an optimizer and a schedule of its own; saves and
resumes in the middle of an epoch. launched.py STAGE PRECISION FOLDER OUT; STAGE "plain": by DDP"""

import json
import pathlib
import sys

import torch
import transformers
from accelerate import Accelerator, InitProcessGroupKwargs
from accelerate.utils import set_seed
from report import write

stage, precision, folder, out = sys.argv[1:]
texts = json.loads(pathlib.Path(folder, "texts.json").read_text())["train"]
tokenizer = transformers.AutoTokenizer.from_pretrained(f"{folder}/llama")


def collate(batch):
    tokens = tokenizer(batch, return_tensors="pt", padding="max_length", max_length=16, truncation=True)
    return {**tokens, "labels": tokens["input_ids"].masked_fill(tokens["attention_mask"] == 0, -100)}


set_seed(1)
accelerator = Accelerator(cpu=stage == "plain", gradient_accumulation_steps=2, project_dir=f"{out}.state",
                          kwargs_handlers=[InitProcessGroupKwargs(backend="gloo")])  # the backend: for CPUs
loader = torch.utils.data.DataLoader(texts, batch_size=2, shuffle=True, collate_fn=collate)
model = transformers.AutoModelForCausalLM.from_pretrained(f"{folder}/llama", attn_implementation="eager")
groups = [{"params": [p for name, p in model.named_parameters() if "norm" not in name], "weight_decay": 0.1},
          {"params": [p for name, p in model.named_parameters() if "norm" in name], "weight_decay": 0.0, "lr": 1e-2}]
optimizer = torch.optim.AdamW(groups, lr=5e-3)
scheduler = transformers.get_linear_schedule_with_warmup(optimizer, 2 * accelerator.num_processes, 12 * accelerator.num_processes)
model, optimizer, loader, scheduler = accelerator.prepare(model, optimizer, loader, scheduler)
losses = []


def train(batches, save_after=None):
    model.train()
    for number, batch in enumerate(batches):
        with accelerator.accumulate(model):
            loss = model(**batch).loss
            accelerator.backward(loss)
            if accelerator.sync_gradients:
                accelerator.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            scheduler.step()
            optimizer.zero_grad()
        losses.append(loss.item())
        if number + 1 == save_after:
            accelerator.save_state(f"{out}.state/middle")


train(loader, save_after=6)
model.eval()
with torch.no_grad():
    losses.append(model(**collate(texts[:4])).loss.item())
whole = accelerator.get_state_dict(model)
accelerator.unwrap_model(model).save_pretrained(f"{out}.saved", is_main_process=accelerator.is_main_process,
                                                state_dict=whole or {}, save_function=accelerator.save)
trained, rates = list(losses), [group["lr"] for group in optimizer.param_groups]
losses.clear()
accelerator.load_state(f"{out}.state/middle")
train(accelerator.skip_first_batches(loader, 6))
accelerator.wait_for_everyone()
write(out, None if stage == "plain" else model, trained, resumed=losses, rates=rates, saved=f"{out}.saved")
