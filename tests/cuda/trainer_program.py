"""A program on transformers' Trainer as its users write it: trainer_program.py MODEL OUT and options of TrainingArguments, such as
--deepspeed FILE. Trains the model in the folder MODEL, saves, resumes from its first checkpoint, saves the model; writes its losses to
OUT."""

import json
import pathlib
import random
import sys

import torch
import transformers

folder, out, *options = sys.argv[1:]
work = pathlib.Path(out).with_suffix(".trainer")


class Noting(transformers.Trainer):
    """Notes the loss of each micro-step: the Trainer's log has four digits."""

    def training_step(self, *arguments, **named):
        loss = super().training_step(*arguments, **named)
        losses.append(loss.item())
        return loss


def train(**more):
    parser = transformers.HfArgumentParser(transformers.TrainingArguments)
    arguments, = parser.parse_args_into_dataclasses(["--output_dir", str(work), *options])
    transformers.set_seed(arguments.seed)
    model = transformers.AutoModelForCausalLM.from_pretrained(folder, attn_implementation="eager")
    drawn = random.Random(1)
    rows = [[(start + 5 * place) % 64 for place in range(48)] for start in drawn.choices(range(64), k=64)]
    data = [{"input_ids": torch.tensor(row), "labels": torch.tensor(row)} for row in rows]
    trainer = Noting(model=model, args=arguments, train_dataset=data)
    trainer.train(**more)
    return trainer


losses = []
trainer = train()
trained, losses = losses, []
trainer.save_model(str(work / "saved"))
first = min(work.glob("checkpoint-*"), key=lambda folder: int(folder.name.split("-")[1]))
train(resume_from_checkpoint=str(first))
saved = transformers.AutoModelForCausalLM.from_pretrained(str(work / "saved"))
pathlib.Path(out).write_text(json.dumps({
    "losses": trained, "resumed": losses, "device": str(trainer.args.device), "engine": type(trainer.model_wrapped).__module__,
    "saved": {name: value.double().abs().sum().item() for name, value in saved.named_parameters()}}))
