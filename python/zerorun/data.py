"""The DataLoader that initialize(training_data=...) returns."""

import logging

import torch
from torch.utils.data import DataLoader, IterableDataset
from torch.utils.data.distributed import DistributedSampler

log = logging.getLogger("zerorun")


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


class PlacedSampler(DistributedSampler):
    """torch's, which begins in the middle of an epoch after a checkpoint was loaded. Its place is that of all ranks, so any number
    of ranks goes on from there: in an epoch each sample is used once, but that the last batch is filled up to equal numbers on
    all ranks with the epoch's first samples, as torch does."""

    used = 0  # samples of the epoch that all ranks have used so far
    _begin = 0  # where the next pass begins

    def set_epoch(self, epoch):
        """A pass over another epoch begins with its first sample."""
        if epoch != self.epoch:
            self.used = self._begin = 0
        super().set_epoch(epoch)

    def __iter__(self):
        begin, self._begin = self._begin, 0
        self.used = begin
        generator = torch.Generator().manual_seed(self.seed + self.epoch)
        order = torch.randperm(len(self.dataset), generator=generator).tolist() if self.shuffle else list(range(len(self.dataset)))
        rest = order[begin:]
        missing = -len(rest) % self.num_replicas
        if missing:
            rest += (order * (missing // len(order) + 1))[:missing]
        return iter(rest[self.rank::self.num_replicas])

    def goes_on(self):
        """Whether the next pass begins behind an epoch's first sample."""
        return self._begin > 0

    def add_used(self, samples):
        self.used = min(self.used + samples, len(self.dataset))

    def go_on(self, epoch, used):
        """The next pass begins behind so many samples of the epoch."""
        self.epoch, self.used, self._begin = epoch, used, used


class TrainingLoader(DataLoader):
    """Counts the samples that it has given to the program. Those are what a checkpoint takes for used."""

    epoch = 0  # in which the program goes on, after a load

    def _is_over(self):
        """Whether the epoch has no batch left."""
        left = len(self.dataset) - self.sampler.used
        return left <= 0 or (self.drop_last and left <= (self.batch_size - 1) * self.sampler.num_replicas)

    def state_dict(self):
        sampler = self.sampler
        return {"samples": len(self.dataset), "seed": sampler.seed, "epoch": sampler.epoch, "used": sampler.used,
                "is_over": self._is_over()}

    def load_state_dict(self, state):
        """Where an epoch was over, the next pass is a whole one."""
        own, saved = (len(self.dataset), self.sampler.seed), (state["samples"], state["seed"])
        if own != saved:
            log.warning("training_data has %s samples, with the sampler's seed %s, and the checkpoint's place is in %s with the "
                        "seed %s: epoch %s begins with its first sample", *own, *saved, state["epoch"])
        begins = own != saved or state["is_over"]
        self.epoch = state["epoch"] + (own == saved and state["is_over"])
        self.sampler.go_on(state["epoch"], 0 if begins else state["used"])

    def __iter__(self):
        # torch's iterator draws a random number when it is made, which it has done already in a pass that goes on.
        generator = torch.get_rng_state() if self.sampler.goes_on() else None
        batches = super().__iter__()
        if generator is not None:
            torch.set_rng_state(generator)
        for batch in batches:
            self.sampler.add_used(self.batch_size * self.sampler.num_replicas)
            yield batch


def make_loader(dataset, batch_size, rank, world_size, collate_fn=None, drop_last=False, num_workers=0):
    """Each rank gets its own samples, in an order that all ranks shuffle with the same seed. The sampler's set_epoch()
    changes the order."""
    sampler = None
    if not isinstance(dataset, IterableDataset):
        sampler = PlacedSampler(dataset, num_replicas=world_size, rank=rank)
    kind = DataLoader if sampler is None else TrainingLoader
    return kind(dataset, batch_size=batch_size, sampler=sampler, collate_fn=collate_fn, drop_last=drop_last,
                num_workers=num_workers, pin_memory=torch.cuda.is_available())
