"""Two data groups of two ranks, given by the program or the config: each trains like plain torch on its two samples a step."""
import sys

import torch

import zerorun
from zerorun import groups

STEPS = 3


class Samples(torch.utils.data.Dataset):
    def __len__(self):
        return 2 * STEPS

    def __getitem__(self, index):
        return torch.randn(6, generator=torch.Generator().manual_seed(index))


def net():
    torch.manual_seed(1)
    return torch.nn.Sequential(torch.nn.Linear(6, 5), torch.nn.Tanh(), torch.nn.Linear(5, 3))


def train(stage, by_config):
    config = {"train_batch_size": 2, "optimizer": {"type": "SGD", "params": {"lr": 0.1}}, "gradient_clipping": 0,
              "zero_optimization": {"stage": stage, "stage3_param_persistence_threshold": 0}}
    given = {} if by_config else {"mesh": {"data": 2, "tensor": 2}}
    if by_config:
        config["zerorun"] = {"mesh": {"tensor": 2}}
    engine, _, loader, _ = zerorun.initialize(model=net(), config=config, training_data=Samples(), tensor_plan={}, **given)
    data, tensor = engine.global_rank // 2, engine.global_rank % 2
    assert engine.mesh == {"data": 2, "tensor": 2, "pipeline": 1}
    assert engine.coordinates == {"data": data, "tensor": tensor, "pipeline": 0}
    assert engine.train_micro_batch_size_per_gpu() == 1 and engine.data_parallel_size == 2 and engine.world_size == 4
    assert groups.get_data_parallel_rank() == data and groups.get_data_parallel_world_size() == 2
    assert list(groups.get_data_parallel_group_ranks()) == [tensor, tensor + 2]
    assert groups.get_tensor_model_parallel_rank() == tensor and groups.get_tensor_model_parallel_world_size() == 2

    sampler = loader.sampler
    assert sampler.num_replicas == 2 and sampler.rank == data
    for batch in loader:
        engine.backward(engine(batch).square().sum())
        engine.step()
    assert engine.global_samples == 2 * STEPS

    plain = net()
    optimizer = torch.optim.SGD(plain.parameters(), lr=0.1)
    shares = [list(torch.utils.data.distributed.DistributedSampler(Samples(), num_replicas=2, rank=rank)) for rank in range(2)]
    for ours in zip(*shares):
        optimizer.zero_grad()
        for index in ours:
            (plain(Samples()[index][None]).square().sum() / 2).backward()
        optimizer.step()
    with torch.no_grad():
        for found, expected in zip(engine.module.parameters(), plain.parameters()):
            torch.testing.assert_close(found + 0, expected, rtol=1e-5, atol=1e-6)
    try:
        engine.save_checkpoint("nowhere")
    except zerorun.UserError as error:
        assert "on a mesh of data 2 x tensor 2 x pipeline 1" in str(error)
    else:
        raise AssertionError("a checkpoint of two data groups")
    engine.destroy()


for stage in map(int, sys.argv[1:]):
    for by_config in (False, True):
        train(stage, by_config)
print("PASS")
