"""A training with a schedule and a count of its own, and the loader of initialize(). Each rank writes what it has done in each step to
FOLDER/rankR, and adds to it after a restart. Arguments: FOLDER EPOCHS [FATAL_STEP SAVE_EVERY [OPTIMIZER]]; at FATAL_STEP the first
attempt's last rank is killed, before the step has ended if the number is even."""

import os
import pathlib
import signal
import sys

import torch
import zerorun

folder, epochs = pathlib.Path(sys.argv[1]), int(sys.argv[2])
fatal_step, save_every = (int(word) for word in sys.argv[3:5]) if sys.argv[3:] else (0, 0)
kind = getattr(torch.optim, sys.argv[5]) if sys.argv[5:] else None


class Samples(torch.utils.data.Dataset):
    def __len__(self):
        return 22

    def __getitem__(self, index):
        return index, torch.full((6,), index / 22)


torch.manual_seed(1)
model = torch.nn.Sequential(torch.nn.Linear(6, 16), torch.nn.Dropout(0.1), torch.nn.Linear(16, 3))
model[0].weight.requires_grad_(False)
config = {"train_micro_batch_size_per_gpu": 2, "gradient_accumulation_steps": 2, "zero_optimization": {"stage": 2},
          "zero_allow_untested_optimizer": True}
given = {"optimizer": kind(model[2].parameters(), lr=0.1)} if kind else {}
if not kind:
    config["optimizer"] = {"type": "AdamW", "params": {"lr": 0.1}}
engine, _, loader, _ = zerorun.initialize(
    model=model, training_data=Samples(), config=config, **given,
    lr_scheduler=lambda optimizer: torch.optim.lr_scheduler.LinearLR(optimizer, start_factor=0.1, total_iters=6))
own = {"seen": 0, "shift": torch.zeros(6)}
found = engine.load_newest(folder / "saves", client_state=lambda: own)
if found is not None:
    path, own = found
    print("from", path, flush=True)
begun = os.environ.get("ZERORUN_RESTARTS") is None
with (folder / f"rank{engine.global_rank}").open("a") as output:
    for epoch in range(loader.epoch, epochs):
        loader.sampler.set_epoch(epoch)
        for numbers, rows in loader:
            own = {"seen": own["seen"] + len(rows), "shift": own["shift"] * 0.9 + 0.01}  # as on all ranks
            loss = engine(rows - own["shift"]).pow(2).mean()
            engine.backward(loss)
            step = engine.global_steps + 1
            is_fatal = begun and step == fatal_step and engine.global_rank == engine.world_size - 1 and engine.is_gradient_accumulation_boundary()
            if is_fatal and step % 2 == 0:
                os.kill(os.getpid(), signal.SIGKILL)
            print(os.environ.get("ZERORUN_RESTARTS", "0"), step, epoch, numbers.tolist(), loss.item(), own["seen"], engine.get_lr(), file=output, flush=True)
            engine.step()
            if is_fatal:
                os.kill(os.getpid(), signal.SIGKILL)
            if save_every and engine.global_steps == step and step % save_every == 0:
                engine.save_checkpoint(folder / "saves", client_state=own)
    print("0 weights", [parameter.detach().clone().flatten().tolist() for parameter in model.parameters()], file=output)
