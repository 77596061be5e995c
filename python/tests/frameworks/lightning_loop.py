"""Lightning's Fabric or Trainer with its DeepSpeed strategy. lightning_loop.py STAGE fabric|trainer OUT; STAGE "plain": by DDP"""

import copy
import os
import pathlib
import sys

import lightning
import torch
from lightning.fabric.accelerators import CPUAccelerator
from report import write

stage, kind, out = sys.argv[1:]
BATCH, STEPS = 4, 8
config = {"train_micro_batch_size_per_gpu": BATCH, "gradient_clipping": 0.0,
          "zero_optimization": {"stage": int(stage) if stage != "plain" else 0, "stage3_param_persistence_threshold": 0}}


def draw(number, rank):
    generator = torch.Generator().manual_seed(10 * number + rank)
    return torch.randn(BATCH, 8, generator=generator), torch.randint(0, 5, (BATCH,), generator=generator)


def make_model():
    generator = torch.Generator().manual_seed(4)
    model = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.Tanh(), torch.nn.Linear(16, 5))
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.copy_(0.3 * torch.randn(parameter.shape, generator=generator))
    return model


class OneRank(torch.utils.data.Dataset):
    """What this rank trains on, so that no sampler is needed."""

    def __init__(self, rank):
        self.rank = rank

    def __len__(self):
        return BATCH * STEPS

    def __getitem__(self, number):
        inputs, labels = draw(number // BATCH, self.rank)
        return inputs[number % BATCH], labels[number % BATCH]


class Module(lightning.LightningModule):
    def __init__(self):
        super().__init__()
        self.model, self.losses = make_model(), []

    def training_step(self, batch, number):
        loss = torch.nn.functional.cross_entropy(self.model(batch[0]), batch[1])
        self.losses.append(loss.item())
        return loss

    def configure_optimizers(self):
        optimizer = torch.optim.AdamW(self.parameters(), lr=1e-2)
        return [optimizer], [torch.optim.lr_scheduler.StepLR(optimizer, 1, 0.5)]


rank = int(os.environ["RANK"])
work = pathlib.Path(out + ".lightning")
if kind == "fabric":
    strategy = "ddp"
    if stage != "plain":
        import lightning.fabric.strategies.deepspeed as module
        from lightning.fabric.strategies import DeepSpeedStrategy

        # For CPUs, which Lightning refuses here: these two names, and the backend.
        module.CUDAAccelerator, module._validate_device_index_selection = CPUAccelerator, lambda devices: None
        strategy = DeepSpeedStrategy(config=config, process_group_backend="gloo")
    fabric = lightning.Fabric(accelerator="cpu", devices=2, strategy=strategy)
    fabric.launch()
    with fabric.init_module():
        model = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.Tanh(), torch.nn.Linear(16, 5))
    values = make_model().state_dict()
    if stage == "3":
        import deepspeed

        with deepspeed.zero.GatheredParameters(list(model.parameters()), modifier_rank=0):
            if rank == 0:
                model.load_state_dict(values)
    else:
        model.load_state_dict(values)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    model, optimizer = fabric.setup(model, optimizer)
    losses, resumed = [], []

    def train(numbers, found):
        for number in numbers:
            inputs, labels = draw(number, rank)
            loss = torch.nn.functional.cross_entropy(model(inputs), labels)
            fabric.backward(loss)
            optimizer.step()
            optimizer.zero_grad()
            found.append(loss.item())

    train(range(4), losses)
    state = {"model": model, "optimizer": optimizer, "number": 4}
    fabric.save(work / "checkpoint", state)
    train(range(4, STEPS), losses)
    state["number"] = 0
    fabric.load(work / "checkpoint", state)
    train(range(state["number"], STEPS), resumed)
    engine = fabric.strategy._deepspeed_engine if stage != "plain" else None
else:
    def make_strategy():
        if stage == "plain":
            return "ddp"
        import lightning.pytorch.strategies.deepspeed as module
        from lightning.pytorch.accelerators import CPUAccelerator
        from lightning.pytorch.strategies import DeepSpeedStrategy

        # For CPUs, which Lightning refuses here: these two names, and the backend.
        module.CUDAAccelerator, module._validate_device_index_selection = CPUAccelerator, lambda devices: None
        return DeepSpeedStrategy(config=copy.deepcopy(config), process_group_backend="gloo")

    loader = torch.utils.data.DataLoader(OneRank(rank), BATCH)

    def fit(epochs, resume=None):
        trainer = lightning.Trainer(accelerator="cpu", devices=2, strategy=make_strategy(), max_epochs=epochs, logger=False,
                                    enable_progress_bar=False, enable_model_summary=False, use_distributed_sampler=False,
                                    enable_checkpointing=False, default_root_dir=work)
        module = Module()
        trainer.fit(module, loader, ckpt_path=resume)
        return trainer, module.losses

    first, _ = fit(1)
    first.save_checkpoint(work / "checkpoint.ckpt")
    _, resumed = fit(2, work / "checkpoint.ckpt")
    trainer, losses = fit(2)
    engine = trainer.strategy.model if stage != "plain" else None
write(out, engine, losses, resumed=resumed)
