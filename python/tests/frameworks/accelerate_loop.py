"""A training loop on Accelerate with a ds_config.json. accelerate_loop.py STAGE PRECISION FOLDER OUT; STAGE "plain": by DDP"""

import json
import pathlib
import sys

import torch
import transformers
from accelerate import Accelerator, InitProcessGroupKwargs
from accelerate.utils import set_seed
from report import warmup_decay, write

stage, precision, folder, out = sys.argv[1:]
steps, warmup, rate = 6, 2, 5e-3
texts = json.loads(pathlib.Path(folder, "texts.json").read_text())["train"]
tokenizer = transformers.AutoTokenizer.from_pretrained(f"{folder}/gpt2")


def collate(batch):
    tokens = tokenizer(batch, return_tensors="pt", padding="max_length", max_length=16, truncation=True)
    return {**tokens, "labels": tokens["input_ids"].masked_fill(tokens["attention_mask"] == 0, -100)}


set_seed(1)
loader = torch.utils.data.DataLoader(texts, batch_size=2, collate_fn=collate)
if stage == "plain":
    accelerator = Accelerator(cpu=True, gradient_accumulation_steps=2)
else:
    from accelerate.utils import DeepSpeedPlugin, DummyOptim, DummyScheduler
    from transformers.integrations import HfTrainerDeepSpeedConfig

    config = json.loads((pathlib.Path(__file__).parent / "ds_config.json").read_text())
    config["zero_optimization"]["stage"] = int(stage)
    config["optimizer"]["params"].update(betas=[0.9, 0.999], eps=1e-8)
    config["bf16"]["enabled"], config["fp16"]["enabled"] = precision == "bf16", False
    path = pathlib.Path(out).with_suffix(f".{stage}.ds_config.json")
    path.write_text(json.dumps(config))
    plugin = DeepSpeedPlugin(hf_ds_config=HfTrainerDeepSpeedConfig(str(path)), gradient_accumulation_steps=2,
                             gradient_clipping=1.0, zero3_init_flag=stage == "3")
    accelerator = Accelerator(deepspeed_plugin=plugin, gradient_accumulation_steps=2,
                              kwargs_handlers=[InitProcessGroupKwargs(backend="gloo")])
model = transformers.AutoModelForCausalLM.from_pretrained(f"{folder}/gpt2", attn_implementation="eager")
total = steps * accelerator.num_processes  # Accelerate's schedulers count the steps of all processes
if stage == "plain":
    optimizer = torch.optim.AdamW(model.parameters(), lr=rate, weight_decay=0.01)
    scheduler = warmup_decay(optimizer, steps, warmup)
    model, optimizer, loader = accelerator.prepare(model, optimizer, loader)
else:
    optimizer = DummyOptim(model.parameters(), lr=rate, weight_decay=0.01)
    scheduler = DummyScheduler(optimizer, total_num_steps=total, warmup_num_steps=warmup)
    model, optimizer, loader, scheduler = accelerator.prepare(model, optimizer, loader, scheduler)
losses, rates = [], []
model.train()
for batch in loader:
    with accelerator.accumulate(model):
        loss = model(**batch).loss
        accelerator.backward(loss)
        if stage == "plain" and accelerator.sync_gradients:
            accelerator.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        if stage != "plain" or accelerator.sync_gradients:
            scheduler.step()
        optimizer.zero_grad()
    losses.append(loss.item())
    if accelerator.sync_gradients:
        rates.append(optimizer.param_groups[0]["lr"])
model.eval()
with torch.no_grad():
    losses.append(model(**collate(texts[:4])).loss.item())
whole = accelerator.get_state_dict(model)
weights = None if whole is None or not accelerator.is_main_process else sum(v.double().abs().sum().item() for v in whole.values())
write(out, None if stage == "plain" else model, losses, rates=rates, weights=weights)
