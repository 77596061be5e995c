"""transformers' Trainer: trains, evaluates, saves, loads the best model, resumes, saves the model.
trainer_loop.py STAGE gpt2|llama FOLDER OUT; STAGE "plain": by DDP"""

import json
import os
import pathlib
import sys

import torch
import transformers
from accelerate import PartialState
from accelerate.state import AcceleratorState
from report import warmup_decay, write
from transformers import DataCollatorForLanguageModeling, Trainer, TrainingArguments

stage, kind, folder, out = sys.argv[1:]
texts = json.loads(pathlib.Path(folder, "texts.json").read_text())
tokenizer = transformers.AutoTokenizer.from_pretrained(f"{folder}/{kind}")
train, evaluate = ([{"input_ids": tokens} for tokens in tokenizer(texts[name])["input_ids"]] for name in ("train", "evaluate"))
work = pathlib.Path(out + ".trainer")
more = {"use_cpu": True, "ddp_backend": "gloo", "ddp_find_unused_parameters": False}
if stage != "plain":
    config = json.loads((pathlib.Path(__file__).parent / "ds_config.json").read_text())
    config["zero_optimization"]["stage"] = int(stage)
    if kind == "llama":  # the optimizer and the schedule of the Trainer; else those of the file
        del config["optimizer"], config["scheduler"]
    more = {"deepspeed": config, "accelerator_config": {"use_configured_state": True}}


class Noting(Trainer):
    """Notes the loss of each micro-step: the Trainer's log has four digits."""

    def training_step(self, *arguments, **named):
        loss = super().training_step(*arguments, **named)
        losses.append(loss.item())
        return loss

    def create_optimizer(self, *arguments):
        if stage != "plain" or kind == "llama":
            return super().create_optimizer(*arguments)
        # As the optimizer of a ds_config.json: weight decay for all parameters, also biases and norms.
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=self.args.learning_rate, weight_decay=0.01)
        return self.optimizer

    def create_scheduler(self, num_training_steps, optimizer=None):
        if stage != "plain" or kind == "llama":
            return super().create_scheduler(num_training_steps, optimizer)
        self.lr_scheduler = warmup_decay(self.optimizer, num_training_steps, self.args.warmup_steps)
        return self.lr_scheduler


def make_trainer(resumes=False):
    if stage != "plain":  # for CPUs: with `deepspeed` the Trainer passes no backend on, and there is no default
        os.environ["ACCELERATE_USE_DEEPSPEED"] = "true"
        AcceleratorState._reset_state(reset_partial_state=True)
        PartialState(backend="gloo")
    arguments = TrainingArguments(
        output_dir=str(work), per_device_train_batch_size=2, per_device_eval_batch_size=2, gradient_accumulation_steps=2,
        max_steps=6, learning_rate=5e-3, weight_decay=0.01, warmup_steps=2, max_grad_norm=0.5, logging_steps=1,
        eval_strategy="steps", eval_steps=2, save_strategy="steps", save_steps=2, load_best_model_at_end=not resumes,
        lr_scheduler_type="linear", report_to=[], disable_tqdm=True, seed=3, dataloader_pin_memory=False, **more)
    model = transformers.AutoModelForCausalLM.from_pretrained(f"{folder}/{kind}", attn_implementation="eager")
    return Noting(model=model, args=arguments, train_dataset=train, eval_dataset=evaluate,
                  data_collator=DataCollatorForLanguageModeling(tokenizer, mlm=False))


losses = []
trainer = make_trainer()
trainer.train()
history = [{name: entry[name] for name in ("loss", "eval_loss", "grad_norm", "learning_rate") if name in entry}
           for entry in trainer.state.log_history]
best = pathlib.Path(trainer.state.best_model_checkpoint).name
after = trainer.evaluate()["eval_loss"]
trainer.save_model(str(work / "saved"))
engine = None if stage == "plain" else trainer.model_wrapped
trained = list(losses)
losses = []
if stage != "plain":  # transformers cannot resume on CPUs without DeepSpeed
    make_trainer(resumes=True).train(resume_from_checkpoint=str(work / "checkpoint-4"))
torch.distributed.barrier()  # rank 0 saves
transformers.integrations.deepspeed.unset_hf_deepspeed_config()  # the saved model is loaded without DeepSpeed
loaded = transformers.AutoModelForCausalLM.from_pretrained(str(work / "saved"), attn_implementation="eager").eval()
tokens = torch.tensor([evaluate[0]["input_ids"]])
with torch.no_grad():
    loaded = loaded(input_ids=tokens, labels=tokens).loss.item()
write(out, engine, trained, resumed=losses, history=history, best=best, after=after, loaded=loaded, saved=str(work / "saved"))
