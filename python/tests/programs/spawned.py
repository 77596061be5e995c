"""A DataLoader whose worker is spawned: it imports this file anew, without an engine."""

import torch
from torch.utils.data import DataLoader, Dataset

import zerorun
from small import config, net


class Rows(Dataset):
    def __len__(self):
        return 12

    def __getitem__(self, index):
        return torch.full((6,), float(index))


if __name__ == "__main__":
    engine, *_ = zerorun.initialize(model=net(), config=config(3))
    loader = DataLoader(Rows(), batch_size=2, num_workers=1, multiprocessing_context="spawn", persistent_workers=True)
    for epoch in range(2):
        seen = []
        for rows in loader:
            engine.backward(engine(rows).pow(2).mean())
            engine.step()
            seen.append(rows[0, 0].item())
        assert seen == [0, 2, 4, 6, 8, 10]
    assert engine.global_steps == 12
