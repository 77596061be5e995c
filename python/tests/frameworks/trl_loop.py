"""trl: supervised fine-tuning, or DPO with a reference model. trl_loop.py STAGE sft|dpo|dpo_peft|sft_peft FOLDER OUT; STAGE "plain": by
DDP"""

import json
import os
import pathlib
import sys

import datasets
import peft
import transformers
import trl
from accelerate import PartialState
from report import write

stage, kind, folder, out = sys.argv[1:]
texts = json.loads(pathlib.Path(folder, "texts.json").read_text())["train"]
tokenizer = transformers.AutoTokenizer.from_pretrained(f"{folder}/llama")
more = {"use_cpu": True, "ddp_backend": "gloo", "ddp_find_unused_parameters": False}
if stage != "plain":
    config = json.loads((pathlib.Path(__file__).parent / "ds_config.json").read_text())
    config["zero_optimization"]["stage"] = int(stage)
    del config["scheduler"]
    if kind != "dpo_peft":  # else the file's optimizer
        del config["optimizer"]
    os.environ["ACCELERATE_USE_DEEPSPEED"] = "true"  # for CPUs: with `deepspeed` no backend is passed on, and there is no default
    PartialState(backend="gloo")
    more = {"deepspeed": config, "accelerator_config": {"use_configured_state": True}}
common = dict(output_dir=out + ".trl", per_device_train_batch_size=2, gradient_accumulation_steps=2, max_steps=4, learning_rate=5e-3,
              max_grad_norm=0.5, logging_steps=1, save_strategy="no", report_to=[], disable_tqdm=True, seed=3, bf16=False,
              gradient_checkpointing=False, dataloader_pin_memory=False, max_length=24, **more)
losses = []


def noting(base):
    class Noting(base):
        """Notes the loss of each micro-step: the log has four digits."""

        def training_step(self, *arguments, **named):
            loss = super().training_step(*arguments, **named)
            losses.append(loss.item())
            return loss

    return Noting


def load():
    return transformers.AutoModelForCausalLM.from_pretrained(f"{folder}/llama", attn_implementation="eager")


transformers.set_seed(5)  # the adapters' values
adapter = peft.LoraConfig(r=4, lora_alpha=8, target_modules=["q_proj", "v_proj"], lora_dropout=0.0, task_type="CAUSAL_LM")
adapter = adapter if kind.endswith("_peft") else None
arguments = trl.DPOConfig(beta=0.5, **common) if kind.startswith("dpo") else trl.SFTConfig(dataset_text_field="text", **common)
if kind.startswith("dpo"):
    pairs = [{"prompt": text, "chosen": " " + other, "rejected": " " + third} for text, other, third in
             zip(texts, texts[1:] + texts[:1], texts[2:] + texts[:2])]
    trainer = noting(trl.DPOTrainer)(model=load(), ref_model=None if adapter else load(), args=arguments,
                                     train_dataset=datasets.Dataset.from_list(pairs), processing_class=tokenizer, peft_config=adapter)
else:
    trainer = noting(trl.SFTTrainer)(model=load(), args=arguments, processing_class=tokenizer, peft_config=adapter,
                                     train_dataset=datasets.Dataset.from_list([{"text": text} for text in texts]))
trainer.train()
history = [{name: entry[name] for name in ("loss", "grad_norm", "rewards/margins") if name in entry}
           for entry in trainer.state.log_history]
trainer.save_model(out + ".saved")
write(out, None if stage == "plain" else trainer.model_wrapped, losses, history=history, saved=out + ".saved")
