"""deepspeed.runtime.lr_schedules: the schedules of ds_config.json as scheduler objects for any optimizer. The engine steps
the one that is passed to initialize(lr_scheduler=...) after each applied optimizer step.

As in DeepSpeed, last_batch_iteration is -1 before the first step(), and the values of iteration n are those of optimizer
step n + 1, counted from 0. A bad argument raises a UserError that is a ValueError too.
"""

import json
import logging

import torch

from .. import _core
from ..errors import BadArgument

log = logging.getLogger("zerorun")

# What the keys of a config are called.
LR_SCHEDULE = "lr_schedule"
LR_RANGE_TEST_MIN_LR, LR_RANGE_TEST_STEP_RATE = "lr_range_test_min_lr", "lr_range_test_step_rate"
LR_RANGE_TEST_STEP_SIZE, LR_RANGE_TEST_STAIRCASE = "lr_range_test_step_size", "lr_range_test_staircase"
CYCLE_FIRST_STEP_SIZE, CYCLE_SECOND_STEP_SIZE = "cycle_first_step_size", "cycle_second_step_size"
CYCLE_FIRST_STAIR_COUNT, CYCLE_SECOND_STAIR_COUNT = "cycle_first_stair_count", "cycle_second_stair_count"
CYCLE_MIN_LR, CYCLE_MAX_LR, CYCLE_MIN_MOM, CYCLE_MAX_MOM = "cycle_min_lr", "cycle_max_lr", "cycle_min_mom", "cycle_max_mom"
DECAY_STEP_SIZE, DECAY_LR_RATE, DECAY_MOM_RATE = "decay_step_size", "decay_lr_rate", "decay_mom_rate"
WARMUP_MIN_LR, WARMUP_MAX_LR, WARMUP_NUM_STEPS = "warmup_min_lr", "warmup_max_lr", "warmup_num_steps"
WARMUP_TYPE, WARMUP_LOG_RATE, WARMUP_LINEAR_RATE = "warmup_type", "log", "linear"
WARMUP_MIN_RATIO, COS_MIN_RATIO, TOTAL_NUM_STEPS = "warmup_min_ratio", "cos_min_ratio", "total_num_steps"


class _Schedule:
    def __init__(self, optimizer, params, last_batch_iteration):
        self.optimizer = optimizer
        try:
            self._schedule = _core.Schedule(json.dumps({"type": type(self).__name__, "params": params}))
        except (TypeError, ValueError, _core.UserError) as error:
            raise BadArgument(f"{type(self).__name__}: {error}") from error
        self._base_lrs = [float(group["lr"]) for group in optimizer.param_groups]
        self.last_batch_iteration = last_batch_iteration
        self._apply()

    def _values(self):
        return [self._schedule.values(self.last_batch_iteration + 1, group, lr) for group, lr in enumerate(self._base_lrs)]

    def _apply(self):
        for group, (lr, betas) in zip(self.optimizer.param_groups, self._values()):
            if isinstance(group["lr"], torch.Tensor):
                group["lr"].fill_(lr)  # the program holds this tensor
            else:
                group["lr"] = lr
            if betas is not None and "betas" in group:
                group["betas"] = betas
        self._last_lr = [group["lr"] for group in self.optimizer.param_groups]

    def _for_each_group(self, name, value):
        values = list(value) if isinstance(value, (list, tuple)) else [value] * len(self.optimizer.param_groups)
        if len(values) != len(self.optimizer.param_groups):
            raise BadArgument(f"{type(self).__name__}: {name} has {len(values)} values, the optimizer "
                               f"{len(self.optimizer.param_groups)} parameter groups")
        return values

    def get_lr(self):
        return [lr for lr, _ in self._values()]

    def get_last_lr(self):
        return list(self._last_lr)

    def step(self, last_batch_iteration=None):
        self.last_batch_iteration = self.last_batch_iteration + 1 if last_batch_iteration is None else last_batch_iteration
        self._apply()

    def state_dict(self):
        return {"last_batch_iteration": self.last_batch_iteration}

    def load_state_dict(self, state):
        self.last_batch_iteration = state["last_batch_iteration"]
        self._apply()


def _given(**params):
    return {name: value for name, value in params.items() if value is not None}


def _positive(schedule, name, value):
    if isinstance(value, bool) or not isinstance(value, int) or value <= 0:
        raise BadArgument(f"{type(schedule).__name__}: {name} must be a positive integer, not {value!r}")


class _Warmup(_Schedule):
    def __init__(self, optimizer, params, warmup_num_steps, warmup_type, last_batch_iteration):
        _positive(self, WARMUP_NUM_STEPS, warmup_num_steps)
        if warmup_type not in (WARMUP_LOG_RATE, WARMUP_LINEAR_RATE):
            log.warning("%s: unknown warmup_type %r: expected \"log\" or \"linear\"; \"log\" is taken", type(self).__name__,
                        warmup_type)
            warmup_type = WARMUP_LOG_RATE
        self.warmup_type = warmup_type
        self.warmup_num_steps = max(2, warmup_num_steps)
        super().__init__(optimizer, {**params, WARMUP_NUM_STEPS: warmup_num_steps, WARMUP_TYPE: warmup_type},
                         last_batch_iteration)


class WarmupLR(_Warmup):
    """Without warmup_max_lr, each group rises to its own learning rate."""

    def __init__(self, optimizer, warmup_min_lr=0.0, warmup_max_lr=None, warmup_num_steps=1000, warmup_type=WARMUP_LOG_RATE,
                 last_batch_iteration=-1):
        self.optimizer = optimizer
        if warmup_max_lr is None:
            warmup_max_lr = [float(group["lr"]) for group in optimizer.param_groups]
        self.min_lrs = self._for_each_group(WARMUP_MIN_LR, warmup_min_lr)
        self.max_lrs = self._for_each_group(WARMUP_MAX_LR, warmup_max_lr)
        super().__init__(optimizer, {WARMUP_MIN_LR: self.min_lrs, WARMUP_MAX_LR: self.max_lrs}, warmup_num_steps, warmup_type,
                         last_batch_iteration)


class WarmupDecayLR(_Warmup):
    def __init__(self, optimizer, total_num_steps, warmup_min_lr=0.0, warmup_max_lr=0.001, warmup_num_steps=1000,
                 warmup_type=WARMUP_LOG_RATE, last_batch_iteration=-1):
        self.optimizer = optimizer
        self.total_num_steps = total_num_steps
        self.min_lrs = self._for_each_group(WARMUP_MIN_LR, warmup_min_lr)
        self.max_lrs = self._for_each_group(WARMUP_MAX_LR, warmup_max_lr)
        super().__init__(optimizer, {TOTAL_NUM_STEPS: total_num_steps, WARMUP_MIN_LR: self.min_lrs,
                                     WARMUP_MAX_LR: self.max_lrs}, warmup_num_steps, warmup_type, last_batch_iteration)


class WarmupCosineLR(_Warmup):
    def __init__(self, optimizer, total_num_steps, warmup_min_ratio=0.0, warmup_num_steps=1000, cos_min_ratio=0.0001,
                 warmup_type=WARMUP_LOG_RATE, last_batch_iteration=-1):
        self.total_num_steps = total_num_steps
        self.warmup_min_ratio, self.cos_min_ratio = warmup_min_ratio, cos_min_ratio
        super().__init__(optimizer, {TOTAL_NUM_STEPS: total_num_steps, WARMUP_MIN_RATIO: warmup_min_ratio,
                                     COS_MIN_RATIO: cos_min_ratio}, warmup_num_steps, warmup_type, last_batch_iteration)

    def get_lr_ratio(self):
        """What each group's own learning rate is multiplied by."""
        return self._schedule.values(self.last_batch_iteration + 1, 0, 1.0)[0]


class OneCycle(_Schedule):
    def __init__(self, optimizer, cycle_min_lr, cycle_max_lr, decay_lr_rate=0.0, cycle_first_step_size=2000,
                 cycle_second_step_size=None, cycle_first_stair_count=0, cycle_second_stair_count=None,
                 decay_step_size=0, cycle_momentum=True, cycle_min_mom=0.8, cycle_max_mom=0.9, decay_mom_rate=0.0,
                 last_batch_iteration=-1):
        second = cycle_first_step_size if cycle_second_step_size is None else cycle_second_step_size
        if cycle_first_step_size <= 0 or second < 0:
            raise BadArgument(f"OneCycle: cycle_first_step_size must be positive and cycle_second_step_size not negative, not "
                               f"{cycle_first_step_size!r} and {second!r}")
        self.total_size = cycle_first_step_size + second
        self.step_ratio = cycle_first_step_size / self.total_size
        self.cycle_momentum = cycle_momentum
        self._max_mom = cycle_max_mom
        super().__init__(optimizer, _given(
            cycle_min_lr=cycle_min_lr, cycle_max_lr=cycle_max_lr, decay_lr_rate=decay_lr_rate,
            cycle_first_step_size=cycle_first_step_size, cycle_second_step_size=cycle_second_step_size,
            cycle_first_stair_count=cycle_first_stair_count, cycle_second_stair_count=cycle_second_stair_count,
            decay_step_size=decay_step_size, cycle_momentum=cycle_momentum, cycle_min_mom=cycle_min_mom,
            cycle_max_mom=cycle_max_mom, decay_mom_rate=decay_mom_rate), last_batch_iteration)

    def get_mom(self):
        """(momentum, beta2) of each group, or None without cycle_momentum. Before the first step(), where the cycle begins."""
        if not self.cycle_momentum:
            return None
        betas = [betas for _, betas in self._values()]
        return starting_momentum(betas, self._max_mom) if self.last_batch_iteration < 0 else betas


def starting_momentum(betas, max_mom):
    """The betas with the momentum where OneCycle begins. DeepSpeed's get_mom() says this before the first step, although that
    step's momentum is cycle_min_mom."""
    moms = max_mom if isinstance(max_mom, (list, tuple)) else [max_mom] * len(betas)
    return [(mom, beta2) for mom, (_, beta2) in zip(moms, betas)]


class LRRangeTest(_Schedule):
    def __init__(self, optimizer, lr_range_test_min_lr=1e-3, lr_range_test_step_size=2000, lr_range_test_step_rate=1.0,
                 lr_range_test_staircase=False, last_batch_iteration=-1):
        _positive(self, LR_RANGE_TEST_STEP_SIZE, lr_range_test_step_size)
        self.optimizer = optimizer
        self.min_lr = self._for_each_group(LR_RANGE_TEST_MIN_LR, lr_range_test_min_lr)
        super().__init__(optimizer, _given(
            lr_range_test_min_lr=self.min_lr, lr_range_test_step_size=lr_range_test_step_size,
            lr_range_test_step_rate=lr_range_test_step_rate, lr_range_test_staircase=lr_range_test_staircase),
                         last_batch_iteration)


LR_RANGE_TEST, ONE_CYCLE = LRRangeTest.__name__, OneCycle.__name__
WARMUP_LR, WARMUP_DECAY_LR, WARMUP_COSINE_LR = WarmupLR.__name__, WarmupDecayLR.__name__, WarmupCosineLR.__name__
VALID_LR_SCHEDULES = [LR_RANGE_TEST, ONE_CYCLE, WARMUP_LR, WARMUP_DECAY_LR, WARMUP_COSINE_LR]
