"""PEFT's LoRA in transformers' Trainer with recomputation: trains, saves, resumes, saves the adapter, adds another one, merges.
peft_loop.py STAGE reentrant|not_reentrant FOLDER OUT; STAGE "plain": by DDP"""

import json
import os
import pathlib
import sys

import peft
import torch
import transformers
from accelerate import PartialState
from accelerate.state import AcceleratorState
from report import write
from transformers import DataCollatorForLanguageModeling, Trainer, TrainingArguments

stage, form, folder, out = sys.argv[1:]
texts = json.loads(pathlib.Path(folder, "texts.json").read_text())["train"]
tokenizer = transformers.AutoTokenizer.from_pretrained(f"{folder}/llama")
train = [{"input_ids": tokens} for tokens in tokenizer(texts)["input_ids"]]
work = pathlib.Path(out + ".trainer")
more = {"use_cpu": True, "ddp_backend": "gloo", "ddp_find_unused_parameters": False}
if stage != "plain":
    config = json.loads((pathlib.Path(__file__).parent / "ds_config.json").read_text())
    config["zero_optimization"]["stage"] = int(stage)
    del config["scheduler"]  # the Trainer's schedule with the file's optimizer
    more = {"deepspeed": config, "accelerator_config": {"use_configured_state": True}}


class Noting(Trainer):
    """Notes the loss of each micro-step: the Trainer's log has four digits."""

    def training_step(self, *arguments, **named):
        loss = super().training_step(*arguments, **named)
        losses.append(loss.item())
        return loss


def make_trainer():
    if stage != "plain":  # for CPUs: with `deepspeed` the Trainer passes no backend on, and there is no default
        os.environ["ACCELERATE_USE_DEEPSPEED"] = "true"
        AcceleratorState._reset_state(reset_partial_state=True)
        PartialState(backend="gloo")
    arguments = TrainingArguments(
        output_dir=str(work), per_device_train_batch_size=2, gradient_accumulation_steps=2, max_steps=6, learning_rate=1e-2,
        weight_decay=0.0, warmup_steps=2, max_grad_norm=0.5, logging_steps=1, save_strategy="steps", save_steps=3, report_to=[],
        gradient_checkpointing=True, gradient_checkpointing_kwargs={"use_reentrant": form == "reentrant"}, disable_tqdm=True,
        seed=3, dataloader_pin_memory=False, **more)
    model = transformers.AutoModelForCausalLM.from_pretrained(f"{folder}/llama", attn_implementation="eager")
    transformers.set_seed(5)  # the adapter's values
    model = peft.get_peft_model(model, peft.LoraConfig(r=4, lora_alpha=8, target_modules=["q_proj", "v_proj"], lora_dropout=0.0,
                                                       task_type="CAUSAL_LM"))
    model.enable_input_require_grads()
    return Noting(model=model, args=arguments, train_dataset=train,
                  data_collator=DataCollatorForLanguageModeling(tokenizer, mlm=False))


losses = []
trainer = make_trainer()
trainer.train()
norms = [entry["grad_norm"] for entry in trainer.state.log_history if "grad_norm" in entry]
trainer.save_model(str(work / "saved"))
engine = None if stage == "plain" else trainer.model_wrapped
trained = list(losses)
losses = []
if stage != "plain":  # transformers cannot resume on CPUs without DeepSpeed
    trainer = make_trainer()
    trainer.train(resume_from_checkpoint=str(work / "checkpoint-3"))
files = sorted(path.name for path in (work / "checkpoint-3").rglob("*") if path.is_file())
torch.distributed.barrier()
write(out, engine, trained, resumed=losses, norms=norms, saved=str(work / "saved"), files=files)
