"""Rank 1 hangs in its data loader in the third step."""

import os
import time

import torch
from small import config, net

import zerorun


class Data(torch.utils.data.Dataset):
    def __len__(self):
        return 40

    def __getitem__(self, index):
        return read_sample(index)


taken = []


def read_sample(index):
    taken.append(index)
    while os.environ["RANK"] == "1" and len(taken) == 5:
        time.sleep(3600)
    return torch.full((6,), float(index))


engine, _, loader, _ = zerorun.initialize(model=net(), config=config(2), training_data=Data())
for batch in loader:
    engine.backward(engine(batch).pow(2).mean())
    engine.step()
