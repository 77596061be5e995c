"""A training program as DeepSpeed's users write it. plain_loop.py STAGE PRECISION OUT"""

import argparse
import inspect
import json

import deepspeed
import torch
from deepspeed.ops.adam import FusedAdam
from torch.utils.data import DataLoader
from torch.utils.data.distributed import DistributedSampler

parser = argparse.ArgumentParser()
parser.add_argument("stage", type=int)
parser.add_argument("precision")
parser.add_argument("out")
parser = deepspeed.add_config_arguments(parser)
args = parser.parse_args()
config = {
    "train_micro_batch_size_per_gpu": 16,
    "gradient_accumulation_steps": 2,
    "gradient_clipping": 1.0,
    "zero_optimization": {"stage": args.stage, "stage3_param_persistence_threshold": 0},
}
if args.precision != "fp32":
    config[args.precision] = {"enabled": True}

deepspeed.init_distributed(dist_backend="gloo")
torch.manual_seed(7)
dataset = torch.utils.data.TensorDataset(torch.randn(256, 12), torch.randn(256, 3))
with deepspeed.zero.Init(config_dict_or_path=config, enabled=args.stage == 3):
    model = torch.nn.Sequential(torch.nn.Linear(12, 24), torch.nn.GELU(), torch.nn.LayerNorm(24), torch.nn.Linear(24, 3))
with deepspeed.zero.GatheredParameters(list(model.parameters()), modifier_rank=0):
    if torch.distributed.get_rank() == 0:
        torch.manual_seed(3)
        with torch.no_grad():
            for parameter in model.parameters():
                parameter.copy_(0.2 * torch.randn(parameter.shape))
optimizer = FusedAdam(model.parameters(), lr=1e-2, weight_decay=0.01)
scheduler = torch.optim.lr_scheduler.StepLR(optimizer, step_size=2, gamma=0.5)
model_engine, optimizer, _, scheduler = deepspeed.initialize(args=args, model=model, optimizer=optimizer,
                                                             lr_scheduler=scheduler, config=config)
dtype = torch.bfloat16 if model_engine.bfloat16_enabled() else torch.float32
loader = DataLoader(dataset, batch_size=model_engine.train_micro_batch_size_per_gpu(), num_workers=1,
                    sampler=DistributedSampler(dataset, shuffle=False))
losses = []
for epoch in range(2):
    model_engine.train()
    for inputs, labels in loader:
        output = model_engine(inputs.to(device=model_engine.device, dtype=dtype))
        loss = torch.nn.functional.mse_loss(output.float(), labels.to(model_engine.device))
        model_engine.backward(loss)
        model_engine.step()
        losses.append(loss.item())
    model_engine.eval()
    with torch.no_grad():
        output = model_engine(dataset.tensors[0].to(device=model_engine.device, dtype=dtype))
        losses.append(torch.nn.functional.mse_loss(output.float(), dataset.tensors[1].to(model_engine.device)).item())

norm = model_engine.get_global_grad_norm()
every = [None] * torch.distributed.get_world_size()
torch.distributed.all_gather_object(every, losses)
if torch.distributed.get_rank() == 0:
    kind = type(model_engine)
    engine = {"class": f"{kind.__module__}.{kind.__name__}", "file": inspect.getfile(kind), "version": deepspeed.__version__}
    with open(args.out, "w", encoding="utf-8") as file:
        json.dump({"engine": engine, "losses": every, "lr": scheduler.get_last_lr(),
                   "norm": float(norm) if norm is not None else None}, file)
