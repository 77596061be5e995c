"""The copy is a usable plain model with the start weights, made before (also under zero.Init) or after initialize(). Arguments: STAGE"""

import sys

import copy

import torch
import torch.distributed as dist
import zerorun as deepspeed
import torch.nn.functional as F

stage = int(sys.argv[1])
deepspeed.init_distributed(dist_backend="gloo")
rank, world = dist.get_rank(), dist.get_world_size()


class LM(torch.nn.Module):
    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.embed, self.mix = torch.nn.Embedding(24, 8), torch.nn.Linear(8, 8)
        self.head = torch.nn.Linear(8, 24, bias=False)
        self.head.weight = self.embed.weight

    def forward(self, ids):
        return self.head(torch.tanh(self.mix(self.embed(ids))))


def log_probability(call, ids):
    return call(ids[:, :-1]).log_softmax(-1).gather(-1, ids[:, 1:, None]).sum((1, 2))


def dpo(policy, reference, chosen, rejected, beta=0.5):
    with torch.no_grad():
        base = log_probability(reference, chosen) - log_probability(reference, rejected)
    return -F.logsigmoid(beta * (log_probability(policy, chosen) - log_probability(policy, rejected) - base)).mean()


def batch(step, of_rank):
    return torch.randint(0, 24, (2, 3, 6), generator=torch.Generator().manual_seed(10 * step + of_rank)).unbind(0)


config = {"train_micro_batch_size_per_gpu": 3, "gradient_clipping": 0.0, "zero_optimization": {"stage": stage, "stage3_param_persistence_threshold": 0}}
plain, plain_reference = LM(), LM()
optimizer = torch.optim.AdamW(plain.parameters(), lr=1e-2, eps=1e-4)
losses = []
for step in range(3):
    every = [dpo(plain, plain_reference, *batch(step, r)) for r in range(world)]
    optimizer.zero_grad()
    (sum(every) / world).backward()
    optimizer.step()
    losses.append(float(every[rank]))
for way in ("before", "under zero.Init", "after"):
    with deepspeed.zero.Init(config_dict_or_path=config, enabled=way == "under zero.Init"):
        model = LM()
    reference = copy.deepcopy(model) if way != "after" else None
    engine, _, _, _ = deepspeed.initialize(model=model, optimizer=torch.optim.AdamW(model.parameters(), lr=1e-2, eps=1e-4), config=config)
    if reference is None:
        reference = copy.deepcopy(engine.module)
    reference.requires_grad_(False).eval()
    for step in range(3):
        loss = dpo(engine, reference, *batch(step, rank))
        engine.backward(loss)
        engine.step()
        assert abs(float(loss) - losses[step]) < 1e-5, (way, step, float(loss), losses[step])
    assert reference.head.weight is reference.embed.weight, way
    torch.testing.assert_close(reference.embed.weight.detach(), LM().embed.weight.detach())
    print(way, "ok", flush=True)
print("PASS", flush=True)
