"""Accelerate on CPU ranks, with and without the name of the backend."""

import os

import torch

os.environ["ACCELERATE_USE_DEEPSPEED"] = "true"
from accelerate import Accelerator, DeepSpeedPlugin, InitProcessGroupKwargs  # noqa: E402
from accelerate.state import AcceleratorState  # noqa: E402
from accelerate.utils import DummyOptim  # noqa: E402

config = {"train_micro_batch_size_per_gpu": 1, "zero_optimization": {"stage": 2},
          "optimizer": {"type": "Adam", "params": {"lr": 0.1}}}
for backend in (None, [InitProcessGroupKwargs(backend="gloo")]):
    AcceleratorState._reset_state(reset_partial_state=True)
    accelerator = Accelerator(deepspeed_plugin=DeepSpeedPlugin(hf_ds_config=config), kwargs_handlers=backend)
    model = torch.nn.Linear(3, 3)
    try:
        model, _ = accelerator.prepare(model, DummyOptim(model.parameters()))
        print("engine:", type(model).__module__, accelerator.num_processes, flush=True)
    except RuntimeError as error:
        print("refused:", error, flush=True)
AcceleratorState._reset_state(reset_partial_state=True)  # for the next program in these ranks
del os.environ["ACCELERATE_USE_DEEPSPEED"]
