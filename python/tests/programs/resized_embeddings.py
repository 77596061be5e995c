"""Old rows kept, new rows set, training equal to plain torch that does the same; resizing after initialize() is refused by name. Arguments: STAGE"""

import sys

import torch
import torch.distributed as dist
import zerorun as deepspeed
import torch.nn.functional as F

stage = int(sys.argv[1])
deepspeed.init_distributed(dist_backend="gloo")
rank, world = dist.get_rank(), dist.get_world_size()
OLD, NEW = 20, 27


class LM(torch.nn.Module):
    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.embed = torch.nn.Embedding(OLD, 8, padding_idx=0)
        self.body = torch.nn.Linear(8, 8)
        self.head = torch.nn.Linear(8, OLD, bias=False)

    def forward(self, ids):
        return F.cross_entropy(self.head(torch.tanh(self.body(self.embed(ids[:, :-1])))).flatten(0, 1), ids[:, 1:].flatten())


def resize(model, config=None, in_engine=False):
    """New modules; rank 0 copies the old rows and fills the new ones with their mean, as transformers does."""
    for name, make in (("embed", lambda: torch.nn.Embedding(NEW, 8, padding_idx=0)), ("head", lambda: torch.nn.Linear(8, NEW, bias=False))):
        old = getattr(model, name)
        with deepspeed.zero.Init(config_dict_or_path=config, enabled=config is not None):
            new = make()
        with deepspeed.zero.GatheredParameters([old.weight, new.weight], modifier_rank=0, enabled=config is not None):
            if rank == 0 or config is None:
                new.weight.data[:OLD] = old.weight.data
                new.weight.data[OLD:] = old.weight.data.mean(0)
        setattr(model, name, new)
    return model


def batch(step, of_rank):
    return torch.randint(1, NEW, (3, 6), generator=torch.Generator().manual_seed(10 * step + of_rank))


config = {"train_micro_batch_size_per_gpu": 3, "gradient_clipping": 0.0, "zero_optimization": {"stage": stage, "stage3_param_persistence_threshold": 0}}
with deepspeed.zero.Init(config_dict_or_path=config, enabled=stage == 3):
    model = LM()
model = resize(model, config if stage == 3 else None)
assert model.embed.weight.shape == (NEW, 8) or stage == 3
plain = resize(LM())
engine, _, _, _ = deepspeed.initialize(model=model, optimizer=torch.optim.AdamW(model.parameters(), lr=1e-2, eps=1e-4), config=config)
optimizer = torch.optim.AdamW(plain.parameters(), lr=1e-2, eps=1e-4)
for step in range(3):
    loss = engine(batch(step, rank))
    engine.backward(loss)
    engine.step()
    every = [plain(batch(step, r)) for r in range(world)]
    torch.testing.assert_close(loss.detach(), every[rank].detach(), rtol=1e-4, atol=1e-5)
    optimizer.zero_grad()
    (sum(every) / world).backward()
    optimizer.step()
with deepspeed.zero.GatheredParameters(list(engine.module.parameters())):
    for (name, a), b in zip(engine.module.named_parameters(), plain.parameters()):
        torch.testing.assert_close(a.detach().clone(), b.detach(), rtol=1e-4, atol=1e-5, msg=lambda t: f"{name}: {t}")
engine.module.embed = torch.nn.Embedding(NEW + 5, 8)  # too late
try:
    engine.backward(engine(batch(0, rank)))
    engine.step()
except Exception as error:
    print("too late:", type(error).__name__, str(error)[:160], flush=True)
else:
    raise AssertionError("an embedding put in after initialize() is not trained, and nothing says so")
print("PASS", flush=True)
