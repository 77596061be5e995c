"""The DataLoader that initialize(training_data=...) returns."""

import torch
from torch.utils.data import DataLoader, IterableDataset
from torch.utils.data.distributed import DistributedSampler


class RepeatingLoader:
    """An endless iterator over a loader: it restarts the loader when it ends."""

    def __init__(self, loader):
        self.loader = loader
        self.data_iter = iter(loader)

    def __iter__(self):
        return self

    def __next__(self):
        try:
            return next(self.data_iter)
        except StopIteration:
            self.data_iter = iter(self.loader)
            return next(self.data_iter)

    def __len__(self):
        return len(self.loader)


def make_loader(dataset, batch_size, rank, world_size, collate_fn=None, drop_last=False, num_workers=0):
    """Each rank gets its own samples, in an order that all ranks shuffle with the same seed. The sampler's set_epoch()
    changes the order."""
    sampler = None
    if not isinstance(dataset, IterableDataset):
        sampler = DistributedSampler(dataset, num_replicas=world_size, rank=rank)
    return DataLoader(dataset, batch_size=batch_size, sampler=sampler, collate_fn=collate_fn, drop_last=drop_last,
                      num_workers=num_workers, pin_memory=torch.cuda.is_available())
