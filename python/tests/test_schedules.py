"""Schedules as objects of the program: their values by iteration, arguments that cannot be, tensors as learning rates."""

import logging
import math

import pytest
import torch
import zerorun
from zerorun.runtime.lr_schedules import LRRangeTest, OneCycle, WarmupCosineLR, WarmupDecayLR, WarmupLR


def optimizer_with(*rates, kind=torch.optim.Adam):
    return kind([{"params": [torch.nn.Parameter(torch.zeros(1))], "lr": rate} for rate in rates])


def test_iterations_are_deepspeeds():
    optimizer = optimizer_with(0.1, 0.2)
    schedule = WarmupLR(optimizer, warmup_num_steps=4, warmup_type="linear")
    assert schedule.last_batch_iteration == -1 and schedule.get_lr() == [0, 0] and schedule.max_lrs == [0.1, 0.2]
    seen = []
    for _ in range(6):
        schedule.step()
        seen.append(schedule.get_last_lr()[0])
    assert schedule.last_batch_iteration == 5
    assert seen == pytest.approx([0, 0.025, 0.05, 0.075, 0.1, 0.1])
    schedule.step(2)
    assert [group["lr"] for group in optimizer.param_groups] == pytest.approx([0.05, 0.1])
    other = WarmupLR(optimizer_with(0.1, 0.2), warmup_num_steps=4, warmup_type="linear")
    other.load_state_dict(schedule.state_dict())
    assert other.get_lr() == schedule.get_lr()


def test_cosine_ratio_is_of_each_groups_own_rate():
    schedule = WarmupCosineLR(optimizer_with(0.1, 0.2), total_num_steps=100, warmup_num_steps=10)
    assert schedule.get_lr_ratio() == 0
    schedule.step(1)
    assert schedule.get_lr_ratio() == pytest.approx(math.log(2) / math.log(10))
    assert schedule.get_lr() == pytest.approx([rate * schedule.get_lr_ratio() for rate in (0.1, 0.2)])


def test_momentum_falls_while_the_rate_rises():
    optimizer = optimizer_with(0.1)
    schedule = OneCycle(optimizer, 0.01, 0.1, cycle_first_step_size=4, cycle_min_mom=0.8, cycle_max_mom=0.9)
    assert schedule.get_mom() == [(0.9, 0.99)] and schedule.step_ratio == 0.5
    for _ in range(3):
        schedule.step()
    (momentum, _), = schedule.get_mom()
    assert momentum == pytest.approx(0.825) and optimizer.param_groups[0]["betas"][0] == momentum
    assert OneCycle(optimizer_with(0.1), 0.01, 0.1, cycle_momentum=False).get_mom() is None


@pytest.mark.parametrize("make", [
    lambda optimizer: WarmupLR(optimizer, warmup_num_steps=None),
    lambda optimizer: WarmupDecayLR(optimizer, 100, warmup_num_steps=-5),
    lambda optimizer: WarmupCosineLR(optimizer, 100, warmup_num_steps=0),
    lambda optimizer: WarmupLR(optimizer, warmup_max_lr=[0.1, 0.2]),
    lambda optimizer: LRRangeTest(optimizer, lr_range_test_step_size=0),
    lambda optimizer: OneCycle(optimizer, 0.01, 0.1, cycle_first_step_size=0, cycle_second_step_size=5),
    lambda optimizer: OneCycle(optimizer, 0.01, 0.1, cycle_second_step_size=-1),
    lambda optimizer: OneCycle(optimizer, "low", 0.1),
])
def test_bad_arguments(make):
    with pytest.raises(ValueError, match="LR: |LRRangeTest: |OneCycle: ") as error:
        make(optimizer_with(0.1))
    assert isinstance(error.value, zerorun.UserError)


def test_unknown_warmup_type_is_log(caplog):
    with caplog.at_level(logging.WARNING, logger="zerorun"):
        schedule = WarmupCosineLR(optimizer_with(0.1), 100, warmup_num_steps=10, warmup_type="steep")
    assert schedule.warmup_type == "log" and "steep" in caplog.text


def test_a_tensor_as_learning_rate_stays_the_programs():
    rate = torch.full((1,), 0.1, dtype=torch.float64)
    optimizer = optimizer_with(rate, kind=torch.optim.SGD)
    schedule = WarmupLR(optimizer, warmup_num_steps=10, warmup_type="linear")
    schedule.step(5)
    assert optimizer.param_groups[0]["lr"] is rate and rate.item() == pytest.approx(0.05)
