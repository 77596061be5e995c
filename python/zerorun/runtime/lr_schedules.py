"""deepspeed.runtime.lr_schedules: the schedules of ds_config.json as scheduler objects for any optimizer. The engine steps
the one that is passed to initialize(lr_scheduler=...) after each applied optimizer step."""

import json

from .. import _core


class _Schedule:
    def __init__(self, optimizer, params, last_batch_iteration):
        self.optimizer = optimizer
        self._schedule = _core.Schedule(json.dumps({"type": type(self).__name__, "params": params}))
        self._base_lrs = [float(group["lr"]) for group in optimizer.param_groups]
        self.last_batch_iteration = last_batch_iteration
        self._apply()

    def _values(self):
        step = max(self.last_batch_iteration, 0)
        return [self._schedule.values(step, group, lr) for group, lr in enumerate(self._base_lrs)]

    def _apply(self):
        for group, (lr, betas) in zip(self.optimizer.param_groups, self._values()):
            group["lr"] = lr
            if betas is not None and "betas" in group:
                group["betas"] = betas
        self._last_lr = [group["lr"] for group in self.optimizer.param_groups]

    def get_lr(self):
        return [lr for lr, _ in self._values()]

    def get_last_lr(self):
        return list(self._last_lr)

    def step(self, last_batch_iteration=None):
        if last_batch_iteration is None:
            last_batch_iteration = max(self.last_batch_iteration, 0) + 1
        self.last_batch_iteration = last_batch_iteration
        self._apply()

    def state_dict(self):
        return {"last_batch_iteration": self.last_batch_iteration}

    def load_state_dict(self, state):
        self.last_batch_iteration = state["last_batch_iteration"]
        self._apply()


def _given(**params):
    return {name: value for name, value in params.items() if value is not None}


class WarmupLR(_Schedule):
    def __init__(self, optimizer, warmup_min_lr=0.0, warmup_max_lr=0.001, warmup_num_steps=1000, warmup_type="log",
                 last_batch_iteration=-1):
        super().__init__(optimizer, _given(warmup_min_lr=warmup_min_lr, warmup_max_lr=warmup_max_lr,
                                           warmup_num_steps=warmup_num_steps, warmup_type=warmup_type),
                         last_batch_iteration)


class WarmupDecayLR(_Schedule):
    def __init__(self, optimizer, total_num_steps, warmup_min_lr=0.0, warmup_max_lr=0.001, warmup_num_steps=1000,
                 warmup_type="log", last_batch_iteration=-1):
        super().__init__(optimizer, _given(total_num_steps=total_num_steps, warmup_min_lr=warmup_min_lr,
                                           warmup_max_lr=warmup_max_lr, warmup_num_steps=warmup_num_steps,
                                           warmup_type=warmup_type), last_batch_iteration)


class WarmupCosineLR(_Schedule):
    def __init__(self, optimizer, total_num_steps, warmup_min_ratio=0.0, warmup_num_steps=1000, cos_min_ratio=0.0001,
                 warmup_type="log", last_batch_iteration=-1):
        super().__init__(optimizer, _given(total_num_steps=total_num_steps, warmup_min_ratio=warmup_min_ratio,
                                           warmup_num_steps=warmup_num_steps, cos_min_ratio=cos_min_ratio,
                                           warmup_type=warmup_type), last_batch_iteration)


class OneCycle(_Schedule):
    def __init__(self, optimizer, cycle_min_lr, cycle_max_lr, decay_lr_rate=0.0, cycle_first_step_size=2000,
                 cycle_second_step_size=None, cycle_first_stair_count=0, cycle_second_stair_count=None,
                 decay_step_size=0, cycle_momentum=True, cycle_min_mom=0.8, cycle_max_mom=0.9, decay_mom_rate=0.0,
                 last_batch_iteration=-1):
        super().__init__(optimizer, _given(
            cycle_min_lr=cycle_min_lr, cycle_max_lr=cycle_max_lr, decay_lr_rate=decay_lr_rate,
            cycle_first_step_size=cycle_first_step_size, cycle_second_step_size=cycle_second_step_size,
            cycle_first_stair_count=cycle_first_stair_count, cycle_second_stair_count=cycle_second_stair_count,
            decay_step_size=decay_step_size, cycle_momentum=cycle_momentum, cycle_min_mom=cycle_min_mom,
            cycle_max_mom=cycle_max_mom, decay_mom_rate=decay_mom_rate), last_batch_iteration)


class LRRangeTest(_Schedule):
    def __init__(self, optimizer, lr_range_test_min_lr=1e-3, lr_range_test_step_size=2000, lr_range_test_step_rate=1.0,
                 lr_range_test_staircase=False, last_batch_iteration=-1):
        super().__init__(optimizer, _given(
            lr_range_test_min_lr=lr_range_test_min_lr, lr_range_test_step_size=lr_range_test_step_size,
            lr_range_test_step_rate=lr_range_test_step_rate, lr_range_test_staircase=lr_range_test_staircase),
                         last_batch_iteration)


LR_RANGE_TEST, ONE_CYCLE = LRRangeTest.__name__, OneCycle.__name__
WARMUP_LR, WARMUP_DECAY_LR, WARMUP_COSINE_LR = WarmupLR.__name__, WarmupDecayLR.__name__, WarmupCosineLR.__name__
VALID_LR_SCHEDULES = [LR_RANGE_TEST, ONE_CYCLE, WARMUP_LR, WARMUP_DECAY_LR, WARMUP_COSINE_LR]
