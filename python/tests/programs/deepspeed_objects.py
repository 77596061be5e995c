"""What DeepSpeed's engine, optimizer and parameters say of themselves, and scopes over several engines. Written for DeepSpeed."""

import math
import os
import sys

import deepspeed
import torch
from deepspeed.runtime.zero.partition_parameters import ZeroParamStatus

folder, stage = sys.argv[1], int(sys.argv[2])
deepspeed.init_distributed()
rank = deepspeed.comm.get_rank()


def model():
    return torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.Linear(8, 8))


def refused(call):
    try:
        call()
    except Exception as error:  # noqa: BLE001
        return str(error)
    raise AssertionError("nothing was raised")


torch.manual_seed(0)
with deepspeed.zero.Init():
    first = model()
assert first[0].weight.ds_status is ZeroParamStatus.NOT_AVAILABLE and first[0].weight.ds_shape == (8, 8)
for name, parameter in first.named_parameters():
    parameter.requires_grad_(name != "1.weight")
config = {
    "train_micro_batch_size_per_gpu": 1, "steps_per_print": math.inf, "zero_optimization.reduce_bucket_size": 0.9,
    "optimizer": {"type": "Adam", "params": {"lr": 1e-2}},
    "zero_optimization": {"stage": stage, "stage3_param_persistence_threshold": 0,
                          "stage3_gather_16bit_weights_on_model_save": True},
}
engine, optimizer, _, schedule = deepspeed.initialize(model=first, config=config)
assert engine.config is config and schedule is None and type(engine).__module__ == "zerorun.engine"
assert isinstance(optimizer, (deepspeed.DeepSpeedOptimizer, deepspeed.ZeROOptimizer))
assert engine.zero_gather_16bit_weights_on_model_save() is True
assert "1.weight" not in engine.module_state_dict(exclude_frozen_parameters=True)
assert list(engine.module_state_dict()) == ["0.weight", "0.bias", "1.weight", "1.bias"]

weight = first[0].weight
plain = torch.nn.Parameter(torch.full((2,), float(rank)))
assert not hasattr(plain, "ds_id")
plain.ds_id = 5  # programs may set it
assert plain.ds_id == 5
if stage == 3:
    assert weight.ds_status is ZeroParamStatus.NOT_AVAILABLE and weight.ds_numel == 64
    assert weight.ds_id == weight.ds_id != first[0].bias.ds_id
    with deepspeed.zero.GatheredParameters([weight]):
        assert weight.ds_status is ZeroParamStatus.AVAILABLE
    offload = engine.optimizer.parameter_offload
    for _, parameter in [*offload.module.named_parameters(recurse=True), *offload.module.ds_external_parameters()]:
        parameter.ds_active_sub_modules.clear()
    for hook in [*offload.forward_hooks, *offload.backward_hooks]:
        hook.remove()
    offload.forward_hooks, offload.backward_hooks = [], []
    offload._register_deepspeed_module(offload.module)
else:
    assert not hasattr(weight, "ds_id") and not hasattr(engine.optimizer, "parameter_offload")

with deepspeed.zero.Init():
    third = model()
with deepspeed.zero.GatheredParameters(third[0].weight, modifier_rank=0):
    assert third[0].weight.data_ptr()
assert third[0].weight.ds_status is ZeroParamStatus.AVAILABLE and third[0].weight.ds_numel == 64

# An engine that only computes, and a scope over both engines.
second = model()
reference, no_optimizer, _, _ = deepspeed.initialize(model=second, optimizer=None, model_parameters=[], config={
    "train_micro_batch_size_per_gpu": 1,
    "zero_optimization": {"stage": 3 if stage == 3 else 0, "stage3_param_persistence_threshold": 0}})
assert no_optimizer is None and reference.optimizer is None
assert reference.zero_gather_16bit_weights_on_model_save() is False
engine.backward(engine(torch.randn(1, 8)).square().sum())
engine.step()
before = [parameter.clone() for parameter in second.parameters()]
both = [plain, *first.parameters(), *second.parameters(), *first.parameters(), plain]
if stage == 3 or rank == 0:
    with deepspeed.zero.GatheredParameters(both if stage == 3 else [], modifier_rank=0):
        if rank == 0:
            for target, source in zip(second.parameters(), first.parameters()):
                target.data.mul_(0.5).add_(source.data, alpha=0.5)
if stage == 3:
    for target, old, source in zip(second.parameters(), before, first.parameters(), strict=True):
        assert torch.allclose(target.clone(), 0.5 * old + 0.5 * source.clone())
    assert plain.tolist() == [rank, rank]  # of no engine: as it was
    with deepspeed.zero.Init():
        third = torch.nn.Linear(2, 2)
    with deepspeed.zero.GatheredParameters([*first.parameters(), *third.parameters()], modifier_rank=1):
        if rank == 1:
            third.weight.data.fill_(7)
    assert third.weight.eq(7).all()
    scope = deepspeed.zero.GatheredParameters([*first.parameters(), *second.parameters()])
    try:
        with scope:
            with scope:
                assert first[0].weight.data_ptr() and second[0].weight.data_ptr()
            raise KeyError
    except KeyError:
        pass
    for parameter in (first[0].weight, second[0].weight):
        assert "partitioned" in refused(parameter.data_ptr)

# The checkpoint's weights in fp32.
engine.save_checkpoint(folder)
whole = engine._zero3_consolidated_16bit_state_dict()
assert (whole is None) == (rank != 0)
if rank == 0:
    from deepspeed.utils import zero_to_fp32

    state = zero_to_fp32.get_fp32_state_dict_from_zero_checkpoint(folder)
    assert state.keys() == whole.keys() and all(torch.equal(state[name], whole[name]) for name in whole)
    assert not [name for name in os.listdir(folder) if name.startswith(".fp32")]
    trained = zero_to_fp32.get_fp32_state_dict_from_zero_checkpoint(folder, exclude_frozen_parameters=True)
    assert set(whole) - set(trained) == {"1.weight"}
    loaded = zero_to_fp32.load_state_dict_from_zero_checkpoint(model(), folder)
    assert all(torch.equal(value, whole[name]) for name, value in loaded.state_dict().items())
    copied = zero_to_fp32.load_state_dict_from_zero_checkpoint(engine.module, folder)  # by this rank alone
    assert copied is not engine.module and [p.requires_grad for p in copied.parameters()] == [p.requires_grad for p in engine.parameters()]
    assert all(torch.equal(value, whole[name]) for name, value in copied.state_dict().items())
    assert "no files of torch.save()" in refused(lambda: zero_to_fp32.get_optim_files(folder))
    assert "no files of torch.save()" in refused(lambda: zero_to_fp32.get_model_state_file(folder, stage))
    assert "no_such_tag" in refused(lambda: zero_to_fp32.get_fp32_state_dict_from_zero_checkpoint(folder, tag="no_such_tag"))
    torch.save(whole, os.path.join(folder, "expected.pt"))
print("done")
