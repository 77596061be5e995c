"""A model whose embeddings are resized trains and generates: greedily, by beams, by sampling. generation_loop.py STAGE gpt2|llama FOLDER
OUT; STAGE "plain": by DDP"""

import sys

import torch
import transformers
from accelerate import Accelerator, InitProcessGroupKwargs
from accelerate.utils import DeepSpeedPlugin
from report import write

stage, kind, folder, out = sys.argv[1:]
if stage == "plain":
    accelerator = Accelerator(cpu=True)
else:
    config = {"train_micro_batch_size_per_gpu": 2, "gradient_clipping": 0.0,
              "zero_optimization": {"stage": int(stage), "stage3_param_persistence_threshold": 0}}
    accelerator = Accelerator(deepspeed_plugin=DeepSpeedPlugin(hf_ds_config=config, zero3_init_flag=stage == "3"),
                              kwargs_handlers=[InitProcessGroupKwargs(backend="gloo")])  # the backend: for CPUs
model = transformers.AutoModelForCausalLM.from_pretrained(f"{folder}/{kind}", attn_implementation="eager")
model.resize_token_embeddings(50, mean_resizing=False)  # fewer rows: those that are left keep their values
model, optimizer = accelerator.prepare(model, torch.optim.AdamW(model.parameters(), lr=5e-3))
prompt = torch.tensor([[1, 5, 9, 13], [1, 6, 10, 14]]) + accelerator.process_index
found = []
for number in range(3):
    model.train()
    tokens = torch.randint(4, 40, (2, 12), generator=torch.Generator().manual_seed(10 * number + accelerator.process_index))
    loss = model(input_ids=tokens, labels=tokens).loss
    accelerator.backward(loss)
    optimizer.step()
    optimizer.zero_grad()
    found.append(loss.item())
    model.eval()
    whole = accelerator.unwrap_model(model)
    for more in ({}, {"num_beams": 3}, {"do_sample": True}):
        transformers.set_seed(number)
        made = whole.generate(prompt, attention_mask=torch.ones_like(prompt), max_new_tokens=6 + accelerator.process_index,
                              synced_gpus=stage == "3", pad_token_id=0, **more)
        found += made.flatten().tolist()
write(out, None if stage == "plain" else model, found)
