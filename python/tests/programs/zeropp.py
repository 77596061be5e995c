"""Four ranks that send less: replicas, second copies and 8 bits, each beside plain torch on the samples of all ranks."""
import torch

import zerorun

STEPS, RANKS = 6, 4


def net():
    torch.manual_seed(1)
    return torch.nn.Sequential(torch.nn.Linear(12, 40), torch.nn.Tanh(), torch.nn.Linear(40, 30), torch.nn.Tanh(), torch.nn.Linear(30, 3))


def sample(step, rank):
    return torch.randn(3, 12, generator=torch.Generator().manual_seed(step * RANKS + rank))


def loss_of(model, batch):
    return (model(batch).tanh() - 0.5).square().mean()


def plain():
    model, losses = net(), []
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for step in range(STEPS):
        optimizer.zero_grad()
        total = sum(loss_of(model, sample(step, rank)) for rank in range(RANKS)) / RANKS
        total.backward()
        optimizer.step()
        losses.append(total.item())
    return model, losses


def train(tolerance, stage=3, mesh=None, argument=None, **zero):
    config = {"train_micro_batch_size_per_gpu": 3, "optimizer": {"type": "SGD", "params": {"lr": 0.1}},
              "zero_optimization": {"stage": stage, "stage3_param_persistence_threshold": 0, "stage3_max_reuse_distance": 0, **zero}}
    if mesh:
        config["zerorun"] = {"mesh": mesh}
    engine, *_ = zerorun.initialize(model=net(), config=config, mesh=argument)
    expected, losses = plain()
    for step in range(STEPS):
        loss = loss_of(engine, sample(step, engine.global_rank))
        engine.backward(loss)
        engine.step()
        mean = loss.detach().clone()
        torch.distributed.all_reduce(mean)
        assert abs(mean.item() / RANKS - losses[step]) <= tolerance * losses[step], (zero, mesh, step, mean.item() / RANKS, losses[step])
    with torch.no_grad(), zerorun.zero.GatheredParameters(list(engine.module.parameters())):
        pairs = zip(engine.module.parameters(), expected.parameters())
        furthest = max((found - right).abs().max().item() for found, right in pairs)
    assert furthest <= tolerance, (zero, mesh, furthest)
    engine.destroy()
    return furthest


torch.distributed.init_process_group("gloo")
for stage in (1, 2, 3):
    train(1e-6, stage=stage, mesh={"replicate": 2})
train(1e-6, argument={"dp_replicate": 2, "dp_shard": 2})
train(1e-6, zero_hpz_partition_size=2)
exact = train(1e-6)
for keys in ({"zero_quantized_weights": True}, {"zero_quantized_gradients": True},
             {"zero_quantized_weights": True, "zero_quantized_gradients": True, "zero_hpz_partition_size": 2}):
    assert train(2e-2, **keys) > exact, "nothing was rounded"
print("PASS")
