"""transformers' Trainer with tensor_parallel.autotp_size in the ds_config, beside a plain loop: trains, evaluates, saves, resumes.
STAGE FOLDER"""
import itertools
import os
import pathlib
import sys

import torch
import transformers
from accelerate import PartialState
from accelerate.state import AcceleratorState
from tensor_models import seeded

stage, folder = int(sys.argv[1]), pathlib.Path(sys.argv[2])
STEPS, ACCUMULATION, BATCH, RATE = 3, 2, 2, 0.1
TOKENS = torch.randint(61, (96, 9), generator=torch.Generator().manual_seed(1))
LABELS = TOKENS.clone()
LABELS[:, 0] = -100  # nothing predicts it, and the Trainer divides by the number of labels


def plain(data):
    model = seeded("llama")
    optimizer = torch.optim.SGD(model.parameters(), lr=RATE)
    losses, rows = [], iter(zip(TOKENS.split(BATCH), LABELS.split(BATCH)))
    for _ in range(STEPS):
        optimizer.zero_grad()
        for _ in range(ACCUMULATION):
            of_ranks = [model(input_ids=tokens, labels=labels).loss for tokens, labels in itertools.islice(rows, data)]
            (sum(of_ranks) / data / ACCUMULATION).backward()
            losses.append([each.item() for each in of_ranks])
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


def make_trainer(model):
    os.environ["ACCELERATE_USE_DEEPSPEED"] = "true"
    AcceleratorState._reset_state(reset_partial_state=True)
    PartialState(backend="gloo")
    arguments = transformers.TrainingArguments(
        output_dir=str(folder), per_device_train_batch_size=BATCH, per_device_eval_batch_size=BATCH, max_steps=STEPS,
        gradient_accumulation_steps=ACCUMULATION, learning_rate=RATE, max_grad_norm=0.5, logging_steps=1, save_strategy="steps",
        save_steps=2, report_to=[], disable_tqdm=True, dataloader_pin_memory=False, lr_scheduler_type="constant",
        accelerator_config={"use_configured_state": True}, deepspeed=config)
    rows = [{"input_ids": tokens, "labels": labels} for tokens, labels in zip(TOKENS, LABELS)]
    return Noting(model=model, args=arguments, train_dataset=rows, eval_dataset=rows[:8])


config = {"train_micro_batch_size_per_gpu": "auto", "train_batch_size": "auto", "gradient_accumulation_steps": "auto",
          "gradient_clipping": "auto", "optimizer": {"type": "SGD", "params": {"lr": RATE}},
          "tensor_parallel": {"autotp_size": 2},
          "zero_optimization": {"stage": stage, "stage3_gather_16bit_weights_on_model_save": True}}
losses = []
trainer = make_trainer(seeded("llama"))
trainer.train()
engine = trainer.model_wrapped
data, place = engine.mesh["data"], engine.coordinates["data"]
assert engine.mesh["tensor"] == 2 and engine.train_batch_size() == BATCH * ACCUMULATION * data
expected, expected_losses = plain(data)
assert len(losses) == STEPS * ACCUMULATION
for found, of_ranks in zip(losses, expected_losses):
    assert abs(found * ACCUMULATION - of_ranks[place]) < 1e-6 * of_ranks[place], (losses, expected_losses)
with torch.no_grad():
    exact = expected(input_ids=TOKENS[:8], labels=LABELS[:8]).loss.item()
evaluated = trainer.evaluate()["eval_loss"]
assert abs(evaluated - exact) < 1e-6 * exact, (evaluated, exact)
trainer.save_model(str(folder / "saved"))
trained, losses = losses, []
make_trainer(seeded("llama")).train(resume_from_checkpoint=str(folder / "checkpoint-2"))
assert losses == trained[2 * ACCUMULATION:], (losses, trained)  # to the bit
torch.distributed.barrier()
transformers.integrations.deepspeed.unset_hf_deepspeed_config()
saved = transformers.AutoModelForCausalLM.from_pretrained(folder / "saved")
for name, parameter in expected.named_parameters():
    off = (saved.get_parameter(name) - parameter).abs().max().item()
    assert off <= 2e-6, (name, off)
print("PASS")
