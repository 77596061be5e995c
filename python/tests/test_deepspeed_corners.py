"""What programs and tests for DeepSpeed ask besides training: op builders, leaf modules by name, scaling, momentum of a schedule."""

import pytest
import torch
import zerorun
from zerorun import accelerator, utils
from zerorun.as_deepspeed import configs, op_builder


def make(stage=1, **more):
    model = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.Sequential(torch.nn.Linear(4, 4)))
    config = {"train_micro_batch_size_per_gpu": 1, "zero_optimization": {"stage": stage},
              "optimizer": {"type": "Adam", "params": {"lr": 0.01}}, **more}
    return zerorun.initialize(model=model, config=config)


def test_op_builders():
    assert op_builder.compatible_ops[op_builder.CPUAdamBuilder.NAME] and op_builder.CPUAdamBuilder().is_compatible()
    assert not op_builder.compatible_ops[op_builder.AsyncIOBuilder.NAME]
    with pytest.raises(zerorun.NotSupportedError, match="FusedAdamBuilder.load"):
        op_builder.FusedAdamBuilder().load()


def test_gradient_clipping_of_a_config():
    assert configs.get_gradient_clipping({}) == 1.0 and configs.get_gradient_clipping({"gradient_clipping": 0}) == 0


def test_leaf_modules_by_name():
    model = torch.nn.ModuleDict({"first": torch.nn.Linear(2, 2), "last": torch.nn.ModuleDict({"first": torch.nn.Tanh()})})
    assert utils.set_z3_leaf_modules_by_name(model, ["first", "none"], raise_if_not_found=False) == ([model["first"]], ["none"])
    assert utils.get_z3_leaf_modules(model) == [model["first"]]
    found, missing = utils.set_z3_leaf_modules_by_suffix(model, ["first", "t.first"], flag=False)
    assert found == [model["first"], model["last"]["first"]] and not missing
    assert not utils.get_z3_leaf_modules(model)
    assert utils.set_z3_leaf_modules(model, ["torch.nn.modules.activation.Tanh"]) == [model["last"]["first"]]
    for call in (lambda: utils.set_z3_leaf_modules_by_name(model, ["none"]), lambda: utils.set_z3_leaf_modules(model, ["None"])):
        with pytest.raises(ValueError, match="the model has no module") as error:
            call()
        assert isinstance(error.value, zerorun.UserError)


def test_only_a_loss_can_be_scaled():
    engine, optimizer, _, _ = make(fp16={"enabled": False})
    assert not optimizer.needs_scaler()
    for value in (engine(torch.ones(2, 4)), 3.0):
        with pytest.raises(AssertionError, match="a scalar tensor, not") as error:
            engine.scale(value)
        assert isinstance(error.value, zerorun.UserError)
    assert make(fp16={"enabled": True})[1].needs_scaler() and engine.managed_gradient_accumulation()


def test_momentum_of_the_configs_schedule():
    def scheduled(kind, **params):
        return make(scheduler={"type": kind, "params": params})

    engine, _, _, schedule = scheduled("OneCycle", cycle_min_lr=0.01, cycle_max_lr=0.1, cycle_first_step_size=4)
    assert schedule.get_mom() == [(0.9, 0.99)]  # as DeepSpeed says; the first step's is 0.8
    for _ in range(2):
        engine.backward(engine(torch.ones(1, 4)).sum())
        engine.step()
    assert schedule.get_mom() == engine.get_mom() == [(pytest.approx(0.85), 0.99)]
    assert scheduled("WarmupLR")[3].get_mom() is None


def test_generation_in_a_scope_and_training_after_it():
    engine, _, _, _ = make(stage=3)
    assert [parameter.ds_persist for parameter in engine.module.parameters()] == [True] * 4
    for _ in range(2):
        with zerorun.zero.unwrap_model_for_generation(engine) as model:
            assert model is engine and model.module[0].weight.detach().numpy().shape == (4, 4)
        engine.backward(engine(torch.ones(1, 4)).sum())
        engine.step()


def test_parameters_that_stay_are_those_of_both_limits():
    """Small parameters stay in memory up to a total size."""
    model = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.Linear(4, 4))
    engine = zerorun.initialize(model=model, config={
        "train_micro_batch_size_per_gpu": 1, "optimizer": {"type": "SGD", "params": {"lr": 0.1}},
        "zero_optimization": {"stage": 3, "stage3_model_persistence_threshold": 20}})[0]
    assert [parameter.ds_persist for parameter in engine.module.parameters()] == [True, True, False, False]


def test_devices_on_cpus(monkeypatch):
    monkeypatch.setenv("ZERORUN_DEVICE", "cpu")
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "2")
    assert accelerator.Accelerator().device_count() == 2
    monkeypatch.setenv("LOCAL_SIZE", "4")
    assert accelerator.Accelerator().device_count() == 4
