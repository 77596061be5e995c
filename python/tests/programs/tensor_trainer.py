"""transformers' Trainer with tensor_parallel.autotp_size in the ds_config, beside a plain loop: STAGE FOLDER"""
import os
import pathlib
import sys

import torch
import transformers
from accelerate import PartialState
from tensor_models import seeded

stage, folder = int(sys.argv[1]), pathlib.Path(sys.argv[2])
STEPS, ACCUMULATION, BATCH, RATE = 3, 2, 2, 0.1
TOKENS = torch.randint(61, (96, 9), generator=torch.Generator().manual_seed(1))


def plain(data):
    model = seeded("llama")
    optimizer = torch.optim.SGD(model.parameters(), lr=RATE)
    losses, rows = [], iter(TOKENS.split(BATCH))
    for _ in range(STEPS):
        optimizer.zero_grad()
        for _ in range(ACCUMULATION):
            both = [model(input_ids=each, labels=each).loss / data for each in (next(rows) for _ in range(data))]
            (sum(both) / ACCUMULATION).backward()
            losses.append([each.item() * data for each in both])
        torch.nn.utils.clip_grad_norm_(model.parameters(), 0.5)
        optimizer.step()
    return model, losses


class Noting(transformers.Trainer):
    def training_step(self, *arguments, **named):
        loss = super().training_step(*arguments, **named)
        losses.append(loss.item())
        return loss

    def _get_train_sampler(self, *arguments):
        return torch.utils.data.SequentialSampler(self.train_dataset)


os.environ["ACCELERATE_USE_DEEPSPEED"] = "true"
PartialState(backend="gloo")
config = {"train_micro_batch_size_per_gpu": "auto", "train_batch_size": "auto", "gradient_accumulation_steps": "auto",
          "gradient_clipping": "auto", "optimizer": {"type": "SGD", "params": {"lr": RATE}},
          "tensor_parallel": {"autotp_size": 2},
          "zero_optimization": {"stage": stage, "stage3_gather_16bit_weights_on_model_save": True}}
arguments = transformers.TrainingArguments(
    output_dir=str(folder), per_device_train_batch_size=BATCH, gradient_accumulation_steps=ACCUMULATION, max_steps=STEPS,
    learning_rate=RATE, max_grad_norm=0.5, logging_steps=1, save_strategy="no", report_to=[], disable_tqdm=True,
    dataloader_pin_memory=False, lr_scheduler_type="constant", accelerator_config={"use_configured_state": True}, deepspeed=config)
model = seeded("llama")
losses = []
trainer = Noting(model=model, args=arguments, train_dataset=[{"input_ids": row, "labels": row} for row in TOKENS])
trainer.train()
engine = trainer.model_wrapped
data, place = engine.mesh["data"], engine.coordinates["data"]
expected, expected_losses = plain(data)
print(losses, expected_losses)
trainer.save_model(str(folder / "saved"))
torch.distributed.barrier()
print("PASS")
