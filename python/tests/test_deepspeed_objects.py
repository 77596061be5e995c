"""What programs and frameworks touch of DeepSpeed's objects: engine, optimizer, parameters, checkpoints."""

import io
import logging
import subprocess
import sys

import pytest
import torch
from launch import environment, run
from small import config

import zerorun
from zerorun import as_deepspeed, zero_to_fp32


def posing(program, *arguments, **more):
    return run(program, *arguments, kind="zerorun as deepspeed", **more)


@pytest.mark.parametrize("stage", [0, 2, 3])
def test_objects(stage, tmp_path):
    assert posing("deepspeed_objects.py", tmp_path, stage).count("done") == 2
    script = [sys.executable, str(tmp_path / "zero_to_fp32.py"), str(tmp_path)]
    if stage != 3:
        return
    for options, files in (([], ["pytorch_model.bin"]), (["--max_shard_size", "300B"], None)):
        out = tmp_path / f"out{len(options)}"
        subprocess.run([*script, str(out), *options], env={**environment(), "PYTHONPATH": ""}, check=True, timeout=60)
        written = sorted(path.name for path in out.iterdir())
        assert files is None or written == files
        found = {}
        for name in written:
            if name.endswith(".bin"):
                found.update(torch.load(out / name))
        expected = torch.load(tmp_path / "expected.pt")
        assert found.keys() == expected.keys() and all(torch.equal(found[name], expected[name]) for name in found)
    assert written[-1] == "pytorch_model.bin.index.json" and len(written) > 2
    subprocess.run([*script, str(tmp_path / "safe"), "--safe_serialization"], env={**environment(), "PYTHONPATH": ""}, check=True,
                   timeout=60)
    assert (tmp_path / "safe" / "model.safetensors").exists()


def test_all_ranks_save_a_model_of_transformers(tmp_path):
    posing("saved_by_all.py", tmp_path, "shared")
    first, second = ((tmp_path / rank / "model.safetensors").read_bytes() for rank in "01")
    assert first == second and len(first) > 40_000
    posing("saved_by_all.py", tmp_path, "alone", options=["--comm", "gloo"])


@pytest.mark.parametrize("optimizer", ["DeepSpeedCPUAdagrad", "DeepSpeedCPULion", "FusedLion", "FusedLamb"])
def test_optimizers_of_deepspeed_are_those_of_the_config(optimizer):
    """The classes of deepspeed.ops hold hyperparameters; the config with the same type trains the same."""
    losses = []
    for given in (True, False):
        torch.manual_seed(0)
        model = torch.nn.Linear(4, 4)
        kind = {"DeepSpeedCPUAdagrad": "adagrad", "FusedLamb": "lamb"}.get(optimizer, "lion")
        made = getattr(getattr(zerorun.ops, kind), optimizer)(model.parameters(), lr=0.05, weight_decay=0.1) if given else None
        config = {"train_micro_batch_size_per_gpu": 1, "zero_optimization": {"stage": 1}}
        if not given:
            config["optimizer"] = {"type": kind.capitalize(), "params": {"lr": 0.05, "weight_decay": 0.1}}
        engine = zerorun.initialize(model=model, optimizer=made, config=config)[0]
        for _ in range(3):
            loss = engine(torch.ones(2, 4)).square().sum()
            engine.backward(loss)
            engine.step()
        losses.append(loss.item())
        engine.destroy()
    assert losses[0] == losses[1]


def test_the_accelerator_is_the_cpu():
    from zerorun.accelerator import get_accelerator

    device = get_accelerator()
    assert device is get_accelerator() and device.device_name() == device.device_name(0) == device.current_device_name() == "cpu"
    assert device.communication_backend_name() == "gloo" and device.on_accelerator(torch.ones(1))
    assert device.memory_allocated() == 0 and device.total_memory() > device.available_memory() > 0
    with device.stream(device.current_stream()):
        device.synchronize()
    with pytest.raises(AttributeError, match="no 'graph_pool_handle' on the device cpu"):
        device.graph_pool_handle()
    assert as_deepspeed.VERSION == "0.19.8"


def test_ranks_that_accelerate_takes_for_the_only_one_are_refused():
    output = run("alone_in_accelerate.py", kind="zerorun as deepspeed")
    assert output.count("refused: initialize(): Accelerate takes this rank for the only one, but there are 2") == 2
    run("alone_in_accelerate.py", "gloo", kind="zerorun as deepspeed")


def test_nested_tensors_are_moved_and_cloned():
    from zerorun.runtime.utils import clone_tensors_for_torch_save, copy_to_device, move_to_device

    part = torch.arange(10.0)[:2]
    item = {"a": [part, (part, 3)], "b": "text"}
    cloned = clone_tensors_for_torch_save(item)
    assert cloned["a"][1][1] == 3 and cloned["b"] == "text" and isinstance(cloned["a"][1], tuple)
    assert cloned["a"][0].equal(part) and cloned["a"][0].untyped_storage().nbytes() == 8
    assert move_to_device([part], "cpu")[0].equal(part)
    assert copy_to_device((part, 1), "cpu", torch.is_tensor)[0].equal(part)


@pytest.mark.parametrize("stage", [0, 2])
def test_the_optimizer_steps_for_the_engine(stage):
    model = torch.nn.Linear(4, 4)
    engine, optimizer, _, _ = zerorun.initialize(model=model, config={
        "train_micro_batch_size_per_gpu": 1, "optimizer": {"type": "Adam", "params": {"lr": 0.1}},
        "zero_optimization": {"stage": stage}})
    losses = []
    for closure in (None, lambda: 3):
        loss = engine(torch.ones(1, 4)).square().sum()
        engine.backward(loss)
        assert optimizer.step(closure) == (3 if closure else None)
        losses.append(loss.item())
        for again in (engine.step, optimizer.step):  # one backward is one step
            with pytest.raises(zerorun.UserError, match="without an earlier backward"):
                again()
    assert losses[1] < losses[0] and engine.global_steps == 2
    state = optimizer.state_dict()
    assert state["param_groups"][0]["lr"] == 0.1 and state["state"] == {}
    with pytest.raises(zerorun.UserError, match="engine.save_checkpoint.. saves it"):
        torch.save({"optimizer": state}, io.BytesIO())
    engine.destroy()


def test_weights_behind_bytes(tmp_path):
    """Of tensors whose places in the file are not multiples of their elements' sizes."""
    class Net(torch.nn.Linear):
        def __init__(self):
            super().__init__(3, 3)
            self.register_buffer("a", torch.tensor([True, False, True]))
            self.register_buffer("b", torch.arange(5, dtype=torch.uint8))

    net = Net()
    engine = zerorun.initialize(model=net, config=config())[0]
    engine.save_checkpoint(tmp_path)
    state = zero_to_fp32.get_fp32_state_dict_from_zero_checkpoint(tmp_path)
    assert all(torch.equal(state[name], tensor) for name, tensor in net.state_dict().items())


def test_logged_once(caplog):
    for _ in range(2):
        zerorun.utils.log_dist_once("only once", ranks=[0], level=logging.WARNING)
    assert [record.message for record in caplog.records].count("[Rank 0] only once") == 1
