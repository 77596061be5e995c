"""What a program takes over from the engine, as it does from DeepSpeed's: the schedule, hooks on the optimizer's step, counts of
samples; and what the config says to those who ask."""

import pytest
import torch
import zerorun
from small import config, loss_of, make, net, step
from torch.optim.optimizer import register_optimizer_step_post_hook
from zerorun import utils
from zerorun.partitioned import ZeroParamStatus

WARMUP = {"scheduler": {"type": "WarmupLR", "params": {"warmup_max_lr": 1.0, "warmup_num_steps": 4, "warmup_type": "linear"}}}


def rates_after(engine, steps):
    rates = []
    for _ in range(steps):
        step(engine)
        rates.append(engine.get_lr()[0])
        assert engine.optimizer.param_groups[0]["lr"] == rates[-1]
    return rates


def test_without_the_configs_schedule_rates_are_the_programs(tmp_path):
    engine = make(1, **WARMUP)
    assert rates_after(engine, 3) == [0, 0.25, 0.5]
    engine.lr_scheduler = None
    assert rates_after(engine, 2) == [0.5, 0.5]
    engine.optimizer.param_groups[0]["lr"] = 0.125
    assert rates_after(engine, 2) == [0.125, 0.125]
    engine.save_checkpoint(tmp_path)
    other = make(3, **WARMUP)
    other.lr_scheduler = None
    other.load_checkpoint(tmp_path)
    assert other.get_lr() == [0.125] and rates_after(other, 1) == [0.125]


def test_the_configs_schedule_goes_on_when_the_program_steps_it():
    """As Lightning does, which sets engine.lr_scheduler to None and keeps the schedule."""
    expected = rates_after(make(**WARMUP), 6)
    engine = make(**WARMUP)
    schedule = engine.lr_scheduler
    found = rates_after(engine, 2)
    schedule.step()  # no effect
    engine.lr_scheduler = None
    for _ in range(4):
        step(engine)
        schedule.step()
        found.append(engine.get_lr()[0])
    assert found == expected
    assert schedule.state_dict() == {"last_batch_iteration": 5}
    schedule.load_state_dict({"last_batch_iteration": 2})
    assert schedule.get_last_lr() == [expected[2]]
    engine.lr_scheduler = schedule  # the engine calls its step() again
    assert rates_after(engine, 3) == expected[3:]


def test_another_schedule_takes_the_place_of_the_configs():
    engine = make(**WARMUP)
    step(engine)
    engine.optimizer.param_groups[0]["lr"] = engine.optimizer.param_groups[0]["initial_lr"] = 0.5
    engine.lr_scheduler = torch.optim.lr_scheduler.StepLR(engine.optimizer, 1, gamma=0.5)
    assert rates_after(engine, 2) == [0.25, 0.125]
    kept, engine.lr_scheduler = engine.lr_scheduler, None
    assert rates_after(engine, 3) == [0.125] * 3
    engine.lr_scheduler = kept  # the steps without it are not made up for
    assert rates_after(engine, 1) == [0.0625]


@pytest.mark.parametrize("stage", [0, 3])
def test_hooks_on_the_optimizers_step(stage):
    engine = make(stage, gradient_accumulation_steps=2)
    optimizer, called = engine.optimizer, []
    optimizer.register_step_pre_hook(lambda of, args, kwargs: called.append(("before", of, engine.global_steps)))
    handle = optimizer.register_step_post_hook(lambda of, args, kwargs: called.append(("after", of, engine.global_steps)))
    everywhere = register_optimizer_step_post_hook(lambda of, args, kwargs: called.append(("all", of, 0)))
    first, second = [("before", optimizer, 0), ("after", optimizer, 1), ("all", optimizer, 0)], [("before", optimizer, 1)]
    step(engine)
    assert called == []
    step(engine)
    assert called == first
    everywhere.remove()
    handle.remove()
    for _ in range(2):
        engine.backward(loss_of(engine))
        optimizer.step()
    assert called == first + second
    with pytest.raises(zerorun.UserError, match="without an earlier backward"):
        engine.step()
    assert called == first + second


def test_hooks_of_all_optimizers_are_called_once_for_one_that_runs_itself():
    model, called = net(), []
    plain = {**config(), "zero_allow_untested_optimizer": True}
    del plain["optimizer"]
    engine = zerorun.initialize(model=model, config=plain, optimizer=torch.optim.NAdam(model.parameters()))[0]
    handle = register_optimizer_step_post_hook(lambda of, args, kwargs: called.append("all"))
    engine.optimizer.register_step_post_hook(lambda of, args, kwargs: called.append("own"))
    step(engine)
    handle.remove()
    assert called == ["all", "own"]


def test_a_hook_before_the_step_may_set_rates():
    engine = make()
    before = [parameter.detach().clone() for parameter in engine.module.parameters()]

    def stop(optimizer, args, kwargs):
        optimizer.param_groups[0]["lr"] = 0.0

    engine.optimizer.register_step_pre_hook(stop)
    step(engine)
    assert all(torch.equal(*pair) for pair in zip(before, engine.module.parameters()))


def test_samples_are_those_of_optimizer_steps(tmp_path):
    engine = make(gradient_accumulation_steps=3)
    counts = []
    for _ in range(6):
        step(engine)
        counts.append(engine.global_samples)
    assert counts == [0, 0, 6, 6, 6, 12]
    engine.save_checkpoint(tmp_path / "managed")
    other = make(gradient_accumulation_steps=1)
    other.load_checkpoint(tmp_path / "managed")
    assert other.global_samples == 2 * other.train_batch_size()  # as DeepSpeed counts where a checkpoint does not say it

    engine = make(managed_gradient_accumulation=False, gradient_accumulation_steps=3)
    for backwards in (1, 4):
        for index in range(backwards):
            loss = loss_of(engine)
            engine.backward(loss) if index else loss.backward()
        engine.step()
    assert engine.global_samples == 10
    engine.save_checkpoint(tmp_path / "own")
    engine = make(managed_gradient_accumulation=False, gradient_accumulation_steps=3)
    engine.load_checkpoint(tmp_path / "own", load_module_only=True)
    assert engine.global_samples == 0
    assert engine.load_checkpoint(tmp_path / "own")[1] == {} and engine.global_samples == 10


class Reader(torch.nn.Linear):
    def forward(self, x):
        self.seen = [parameter.ds_status for parameter in self.parameters()]
        return super().forward(x)


def test_leaf_modules_of_the_config(caplog):
    def statuses(**leaf_module):
        model = torch.nn.ModuleDict({"first": Reader(6, 6), "last": torch.nn.Sequential(Reader(6, 6))})
        zero = {"stage": 3, "stage3_param_persistence_threshold": 0, "leaf_module": leaf_module}
        engine = zerorun.initialize(model=model, config={**config(), "zero_optimization": zero})[0]
        engine.backward(model["last"][0](model["first"](torch.ones(1, 6))).sum())
        engine.step()
        marked = utils.get_z3_leaf_modules(model)
        engine.destroy()
        seen = [module for module in (model["first"], model["last"][0]) if set(module.seen) == {ZeroParamStatus.AVAILABLE}]
        assert seen == [module for module in (model["first"], model["last"][0]) if module in marked]
        return [name for name, module in model.named_modules() if module in marked]

    assert statuses() == []
    assert statuses(classes="Reader") == ["first", "last.0"]
    assert statuses(classes=[f"{Reader.__module__}.Reader"], names=["first"]) == ["first", "last.0"]
    assert statuses(names=["first"]) == ["first"]
    with caplog.at_level("WARNING", logger="zerorun"):
        assert statuses(name_suffixes=[".0", "nowhere"], classes=["Experts"]) == ["last.0"]
    assert "leaf_module: the model has no module 'Experts' and none 'nowhere': correct the name" in caplog.text


def test_blocks_of_experts_are_leaf_modules_where_ranks_share_no_memory():
    block = type("MixtralSparseMoeBlock", (torch.nn.Linear,), {"__module__": "transformers.models.mixtral.modeling_mixtral"})
    for classes, shares_memory, marked in (([], False, True), ([], True, False), (["Other"], False, False)):
        model = torch.nn.Sequential(torch.nn.Linear(2, 2), block(2, 2))
        utils.mark_leaf_modules(model, {"leaf_classes": classes, "leaf_names": [], "leaf_suffixes": []}, shares_memory)
        assert utils.get_z3_leaf_modules(model) == ([model[1]] if marked else [])


@pytest.mark.parametrize("stage", [0, 2, 3])
def test_what_the_config_says_of_saving(stage):
    for key in ("stage3_gather_16bit_weights_on_model_save", "gather_16bit_weights_on_model_save"):
        zero = {"stage": stage, key: True}
        engine = zerorun.initialize(model=net(), config={**config(), "zero_optimization": zero})[0]
        assert engine.zero_gather_16bit_weights_on_model_save() is True
        engine.destroy()
    assert make(stage).zero_gather_16bit_weights_on_model_save() is False


def test_momentum_of_a_schedule_for_an_optimizer_without_it():
    engine = make(scheduler={"type": "OneCycle", "params": {"cycle_min_lr": 0.01, "cycle_max_lr": 0.1}},
                  optimizer={"type": "SGD", "params": {"lr": 0.1}})
    assert engine.lr_scheduler.get_mom() is None


def test_wrong_arguments_are_the_errors_of_deepspeed(tmp_path):
    engine = make()
    step(engine)
    for call in (lambda: engine.save_checkpoint(None), lambda: engine.save_checkpoint(""), lambda: engine.save_checkpoint(3),
                 lambda: engine.load_checkpoint(None), lambda: engine.save_16bit_model(None),
                 lambda: engine.save_checkpoint(tmp_path, client_state=3), lambda: zerorun.initialize(model=net(), config=3),
                 lambda: zerorun.initialize(model=net(), config=tmp_path / "none.json")):
        with pytest.raises(ValueError, match="_checkpoint|save_16bit_model|initialize") as error:
            call()
        assert isinstance(error.value, zerorun.UserError)
    for call in (lambda: zerorun.initialize(model=None, config=config()), lambda: zerorun.initialize(model=net()),
                 lambda: engine.backward(3.0)):
        with pytest.raises(AssertionError, match="initialize|backward") as error:
            call()
        assert isinstance(error.value, zerorun.UserError)
    step(engine)


def test_numbers_for_booleans_in_a_config():
    model = net()
    plain = {**config(), "zero_allow_untested_optimizer": 1, "bf16": {"enabled": 0}}
    del plain["optimizer"]
    engine = zerorun.initialize(model=model, config=plain, optimizer=torch.optim.NAdam(model.parameters()))[0]
    step(engine)
    with pytest.raises(zerorun.UserError, match="zero_allow_untested_optimizer: expected true or false, found 2"):
        zerorun.initialize(model=net(), config={**plain, "zero_allow_untested_optimizer": 2})
