"""One rank of a program on transformers' Trainer: trains a small GPT-2 on random tokens and notes the time of each step.

Reads numbers of steps from standard input, and takes as many, until there is none; with --every it takes --steps, and evaluates
and saves between them."""

import argparse
import json
import os
import sys
import time

import torch
import transformers
from accelerate import PartialState
from accelerate.state import AcceleratorState
from jobs import pss_of


def say(event, **more):
    if os.environ["RANK"] == "0":
        print(json.dumps({"event": event, **more}), flush=True)


class Tokens(torch.utils.data.Dataset):
    def __init__(self, shape, size, seed):
        generator = torch.Generator().manual_seed(seed)
        self.tokens = torch.randint(shape["vocab"], (size, shape["seq"]), generator=generator)

    def __len__(self):
        return len(self.tokens)

    def __getitem__(self, index):
        return {"input_ids": self.tokens[index], "labels": self.tokens[index]}


class Turns(transformers.TrainerCallback):
    """Takes as many steps as standard input says, and then says their times and losses."""

    def __init__(self, losses):
        self.losses, self.left, self.times, self.begin = losses, 0, [], 0.0

    def on_train_begin(self, args, state, control, model=None, **kwargs):
        self._wait(control)

    def on_step_begin(self, args, state, control, **kwargs):
        self.begin = time.perf_counter()

    def on_step_end(self, args, state, control, **kwargs):
        self.times.append(1000 * (time.perf_counter() - self.begin))
        self.left -= 1
        if self.left == 0:
            say("steps", step_ms=self.times, losses=self.losses)
            self.times, self.losses[:] = [], []
            self._wait(control)

    def _wait(self, control):
        line = sys.stdin.readline()
        control.should_training_stop = not line
        self.left = int(line or 0)


class Memory(transformers.TrainerCallback):
    """Says the rank's memory after each save."""

    def on_save(self, args, state, control, **kwargs):
        say("saved", step=state.global_step, pss=pss_of(os.getpid()))


class Noting(transformers.Trainer):
    """Notes the loss of each step: the Trainer's log has four digits."""

    def training_step(self, *arguments, **named):
        loss = super().training_step(*arguments, **named)
        losses.append(loss.item())
        return loss


def config_of(stage):
    return {
        "train_micro_batch_size_per_gpu": "auto", "gradient_accumulation_steps": "auto", "train_batch_size": "auto",
        "gradient_clipping": "auto", "steps_per_print": 1000000000,
        "optimizer": {"type": "AdamW", "params": {"lr": "auto", "betas": "auto", "eps": "auto", "weight_decay": "auto"}},
        "zero_optimization": {"stage": stage, "overlap_comm": True, "stage3_gather_16bit_weights_on_model_save": True},
    }


parser = argparse.ArgumentParser(description=__doc__)
parser.add_argument("--stage", type=int, help="without it DistributedDataParallel trains")
parser.add_argument("--shape", type=json.loads, required=True)
parser.add_argument("--folder", required=True, help="where the Trainer saves")
parser.add_argument("--steps", type=int, default=1000000)
parser.add_argument("--every", type=int, help="evaluate and save after as many steps")
options = parser.parse_args()
shape, losses = options.shape, []
more = {"ddp_find_unused_parameters": False}
if options.stage is not None:
    more = {"deepspeed": config_of(options.stage), "accelerator_config": {"use_configured_state": True}}
    os.environ["ACCELERATE_USE_DEEPSPEED"] = "true"  # for CPUs: with `deepspeed` the Trainer passes no backend on
    AcceleratorState._reset_state(reset_partial_state=True)
    PartialState(backend="gloo")
if options.every:
    more |= {"eval_strategy": "steps", "eval_steps": options.every, "save_strategy": "steps", "save_steps": options.every,
             "save_total_limit": 2}
else:
    more |= {"save_strategy": "no"}
arguments = transformers.TrainingArguments(
    output_dir=options.folder, per_device_train_batch_size=shape["micro_batch"], per_device_eval_batch_size=shape["micro_batch"],
    max_steps=options.steps, learning_rate=1e-4, weight_decay=0.0, max_grad_norm=1.0, lr_scheduler_type="constant", use_cpu=True,
    ddp_backend="gloo", logging_strategy="no", report_to=[], disable_tqdm=True, seed=3, dataloader_pin_memory=False, **more)
torch.manual_seed(5)
model = transformers.GPT2LMHeadModel(transformers.GPT2Config(
    n_layer=shape["layers"], n_embd=shape["hidden"], n_head=shape["heads"], n_positions=shape["seq"], vocab_size=shape["vocab"],
    resid_pdrop=0.0, embd_pdrop=0.0, attn_pdrop=0.0, bos_token_id=0, eos_token_id=0))
trainer = Noting(model=model, args=arguments, train_dataset=Tokens(shape, 2048, 1), eval_dataset=Tokens(shape, 64, 2),
                 callbacks=[Memory() if options.every else Turns(losses)])
trainer.train()
say("over", engine=f"{type(trainer.model_wrapped).__module__}.{type(trainer.model_wrapped).__name__}")
if options.stage is None:
    torch.distributed.destroy_process_group()  # else a thread of Gloo may abort the process at its end
