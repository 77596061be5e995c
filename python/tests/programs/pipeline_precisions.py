"""Pipelines in bf16 and fp16, with the config's schedule, re-entrant recomputation and seeded layers; the same as on one stage:
pipeline_precisions.py."""
import functools

import pipeline_models as models
import torch
from torch.utils.checkpoint import checkpoint

import zerorun
from zerorun.pipe import LayerSpec, PipelineModule

STEPS = 4
more_of = {"fp16": {"initial_scale_power": 10}}
re_entrant = functools.partial(checkpoint, use_reentrant=True)


def train(num_stages, precision, stage, layers=models.specs, **more):
    torch.manual_seed(5)
    net = PipelineModule(layers(), num_stages=num_stages, loss_fn=models.loss_fn, **more)
    config = {"train_micro_batch_size_per_gpu": models.BATCH, "gradient_accumulation_steps": 4, "gradient_clipping": 0.5,
              "optimizer": {"type": "AdamW", "params": {"lr": 0.01}},
              "scheduler": {"type": "WarmupLR", "params": {"warmup_num_steps": 3, "warmup_max_lr": 0.01}},
              "zero_optimization": {"stage": stage, "stage3_param_persistence_threshold": 20}}
    if precision != "fp32":
        config.update({precision: {"enabled": True, **more_of.get(precision, {})}, "data_types": {"buffer_dtype": precision}})
    engine, *_ = zerorun.initialize(model=net, config=config)

    def data(step):
        return iter([models.batch(step, 0, micro) for micro in range(4)])  # the same for all data ranks

    losses = [engine.train_batch(data(step)).item() for step in range(STEPS)]
    assert engine.lr_scheduler.get_last_lr() == [0.01], engine.lr_scheduler.get_last_lr()
    losses.append(engine.eval_batch(data(9)).item())
    engine.destroy()
    return losses


def same(found, expected, within):
    assert all(abs(one - other) <= within * other for one, other in zip(found, expected)), (found, expected)


def with_dropout():
    return [*models.specs()[:7], LayerSpec(torch.nn.Dropout, 0.3), *models.specs()[7:]]


plain = train(1, "fp32", 0)
for precision, within in (("bf16", 1e-2), ("fp16", 3e-3)):
    one = train(1, precision, 1)
    same(one, plain, within)
    same(train(2, precision, 3), one, within / 3)
same(train(2, "fp32", 2, activation_checkpoint_interval=2, activation_checkpoint_func=re_entrant), plain, 1e-6)
seeded = [train(stages, "fp32", 1, with_dropout, seed_layers=True) for stages in (1, 2)]
same(seeded[1], seeded[0], 1e-6)
print("PASS", flush=True)
