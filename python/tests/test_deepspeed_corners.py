"""What programs and tests for DeepSpeed ask besides training: op builders, leaf modules by name, scaling, momentum of a schedule."""

import copy

import pytest
import torch
import zerorun
from zerorun import accelerator, utils
from zerorun.as_deepspeed import configs, op_builder, sections


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


@pytest.mark.parametrize("stage", [0, 2, 3])
def test_parameters_without_a_group_are_frozen(stage, caplog):
    """With an optimizer of the program: groups of the first layer only. They train as under torch, where nothing trains the others."""
    config = {"train_micro_batch_size_per_gpu": 1, "gradient_clipping": 0, "zero_optimization": {"stage": stage}}
    model = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.Linear(4, 4))
    plain = copy.deepcopy(model)
    theirs = torch.optim.SGD(plain[0].parameters(), lr=0.1)
    groups = [{"params": []}, {"params": list(model[0].parameters())}]
    with pytest.raises(zerorun.UserError, match="gradient_cliping"):
        zerorun.initialize(model=model, optimizer=torch.optim.SGD(groups, lr=0.1), config={**config, "gradient_cliping": 1})
    assert all(parameter.requires_grad for parameter in model.parameters())
    with caplog.at_level("WARNING", logger="zerorun"):
        engine = zerorun.initialize(model=model, optimizer=torch.optim.SGD(groups, lr=0.1), config=config)[0]
    assert "no parameter group has 1.weight, 1.bias" in caplog.text
    for _ in range(3):
        engine.backward(engine(torch.ones(1, 4)).sum())
        engine.step()
        plain(torch.ones(1, 4)).sum().backward()
        theirs.step()
        theirs.zero_grad()
    for ours, expected in zip(model.parameters(), plain.parameters()):
        assert torch.allclose(ours.detach().clone(), expected.detach(), rtol=1e-6)
    assert [parameter.requires_grad for parameter in model.parameters()] == [True, True, False, False]
    engine.destroy()
    assert all(parameter.requires_grad for parameter in model.parameters())


def test_the_programs_optimizer_overrides_the_configs(caplog):
    model = torch.nn.Linear(4, 4)
    before = model.weight.detach().clone()
    with caplog.at_level("WARNING", logger="zerorun"):
        engine, optimizer, _, _ = zerorun.initialize(model=model, optimizer=torch.optim.SGD(model.parameters(), lr=0.5), config={
            "train_micro_batch_size_per_gpu": 1, "gradient_clipping": 0, "optimizer": {"type": "Adam", "params": {"lr": 7}}})
    assert "has no effect" in caplog.text and optimizer.param_groups[0]["lr"] == 0.5
    engine.backward(engine(torch.ones(1, 4)).sum())
    engine.step()
    assert torch.allclose(model.weight.detach(), before - 0.5)


def test_states_of_the_program_and_of_the_config():
    bf16 = {"train_micro_batch_size_per_gpu": 1, "bf16": {"enabled": True, "bf16_optimizer_states": True}}
    model = torch.nn.Linear(4, 4)
    with pytest.raises(AssertionError, match="DeepSpeedCPUAdam keeps them in fp32: make it with fp32_optimizer_states=False"):
        zerorun.initialize(model=model, optimizer=zerorun.ops.adam.DeepSpeedCPUAdam(model.parameters()), config=bf16)
    engine = zerorun.initialize(model=model, config=bf16, optimizer=zerorun.ops.adam.DeepSpeedCPUAdam(
        model.parameters(), fp32_optimizer_states=False))[0]
    with engine.no_sync():
        engine.backward(engine(torch.ones(1, 4, dtype=torch.bfloat16)).sum())
        with pytest.raises(AssertionError, match="inside a no_sync.. scope"):
            engine.step()
    engine.backward(engine(torch.ones(1, 4, dtype=torch.bfloat16)).sum())
    engine.step()
    assert engine.global_steps == 1


def test_parameters_are_gathered_by_their_own_methods():
    with zerorun.zero.Init():
        model = torch.nn.Linear(4, 4)
    model.weight.all_gather_coalesced([model.weight, model.bias]).wait()
    before = model.weight.detach().clone()
    assert model.weight.ds_status.name == "AVAILABLE"
    config = {"train_micro_batch_size_per_gpu": 1, "gradient_clipping": 0, "optimizer": {"type": "SGD", "params": {"lr": 0.5}},
              "zero_optimization": {"stage": 3, "stage3_param_persistence_threshold": 0}}
    model.weight.partition([model.weight, model.bias])
    engine = zerorun.initialize(model=model, config=config)[0]
    assert model.weight.ds_status.name == "NOT_AVAILABLE"
    model.weight.all_gather()
    assert torch.equal(model.weight, before) and model.weight.detach().numpy().shape == (4, 4)
    with torch.no_grad():
        model.weight.fill_(2)
    model.weight.partition(has_been_updated=True)
    assert model.weight.ds_status.name == "NOT_AVAILABLE" and model.weight.eq(2).all()
    engine.backward(engine(torch.ones(1, 4)).sum())
    engine.step()
    assert model.weight.eq(1.5).all()


@pytest.mark.parametrize("stage", [0, 2, 3])
def test_parameters_without_a_gradient_may_be_an_error(stage):
    model = torch.nn.ModuleList([torch.nn.Linear(4, 4), torch.nn.Linear(4, 4)])
    engine = zerorun.initialize(model=model, config={
        "train_micro_batch_size_per_gpu": 1, "gradient_accumulation_steps": 2, "optimizer": {"type": "SGD", "params": {"lr": 0.5}},
        "zero_optimization": {"stage": stage, "ignore_unused_parameters": False}})[0]
    for used in (model[:1], model):
        for layers in (used, model[:1]):
            engine.backward(sum(layer(torch.ones(1, 4)).sum() for layer in layers))
            if engine.is_gradient_accumulation_boundary() and used is not model:
                with pytest.raises(AssertionError, match="no backward has reached parameter 1.weight and 1 others.*ignore_unused_parameters"):
                    engine.step()
                engine.zero_grad()
                continue
            engine.step()
    assert engine.global_steps == 1


def test_the_program_owns_the_boundary():
    engine = make(managed_gradient_accumulation=False)[0]
    with pytest.raises(AssertionError, match="set_gradient_accumulation_boundary.. with .managed_gradient_accumulation") as error:
        engine.set_gradient_accumulation_boundary(True)
    assert isinstance(error.value, zerorun.UserError)


def test_classes_for_sections_of_a_config():
    """They have the values of a section's keys, by old names too, and the defaults that the engine's own settings have."""
    section = sections.DeepSpeedZeroConfig(stage=3, cpu_offload=True, stage3_prefetch_bucket_size=7, offload_param=None,
                                           leaf_module={"classes": "Block", "names": ["a", "a"]})
    assert (section.stage, section.prefetch_bucket_size, section.overlap_comm, section.offload_param) == (3, 7, True, None)
    assert isinstance(section.offload_optimizer, sections.DeepSpeedZeroOffloadOptimizerConfig)
    assert section.offload_optimizer.device == "cpu" and not section.offload_optimizer.pipeline
    leaves = section.leaf_module
    assert (leaves.classes, leaves.names, leaves.name_suffixes) == (["Block"], ["a"], [])
    plain = sections.DeepSpeedZeroConfig(stage3_gather_fp16_weights_on_model_save=True)
    assert (plain.stage, plain.overlap_comm, plain.gather_16bit_weights_on_model_save) == (0, False, True)
    assert plain.leaf_module.classes == utils.SPARSE_BLOCKS
    settings = make()[0].resolved_config
    for name in ("reduce_bucket_size", "allgather_bucket_size", "sub_group_size", "zero_hpz_partition_size"):
        assert f'"{name}": {getattr(plain, name)},' in settings
    with pytest.raises(ValueError, match="zero_optimization.offload_param has no key 'devise'"):
        sections.DeepSpeedZeroOffloadParamConfig(devise="cpu")


def test_devices_on_cpus(monkeypatch):
    monkeypatch.setenv("ZERORUN_DEVICE", "cpu")
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "2")
    assert accelerator.Accelerator().device_count() == 2
    monkeypatch.setenv("LOCAL_SIZE", "4")
    assert accelerator.Accelerator().device_count() == 4
