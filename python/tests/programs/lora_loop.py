"""PEFT's LoRA on transformers' GPT-2 with recomputation, as DeepSpeed's users write it. lora_loop.py STAGE REENTRANT OUT"""

import inspect
import json
import sys

import deepspeed
import torch
from lora_model import batch, make_model

stage, reentrant, out = int(sys.argv[1]), sys.argv[2] == "reentrant", sys.argv[3]
deepspeed.init_distributed(dist_backend="gloo")
rank, world_size = torch.distributed.get_rank(), torch.distributed.get_world_size()
model = make_model(reentrant)
model_engine, optimizer, _, _ = deepspeed.initialize(
    model=model, model_parameters=[parameter for parameter in model.parameters() if parameter.requires_grad], config={
        "train_micro_batch_size_per_gpu": 2,
        "gradient_clipping": 1.0,
        "optimizer": {"type": "AdamW", "params": {"lr": 1e-2, "weight_decay": 0.0}},
        "zero_optimization": {"stage": stage, "stage3_param_persistence_threshold": 0},
    })
losses = []
for step in range(6):
    tokens = batch(step * world_size + rank).to(model_engine.device)
    loss = model_engine(input_ids=tokens, labels=tokens, use_cache=False).loss
    model_engine.backward(loss)
    model_engine.step()
    losses.append(loss.item())

norm = model_engine.get_global_grad_norm()
every = [None] * world_size
torch.distributed.all_gather_object(every, losses)
if rank == 0:
    kind = type(model_engine)
    engine = {"class": f"{kind.__module__}.{kind.__name__}", "file": inspect.getfile(kind), "version": deepspeed.__version__}
    with open(out, "w", encoding="utf-8") as file:
        json.dump({"engine": engine, "losses": every, "norm": float(norm) if norm is not None else None}, file)
