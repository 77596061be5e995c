"""What programs and frameworks touch of DeepSpeed's objects: engine, optimizer, parameters, checkpoints."""

import io
import logging
import runpy
import subprocess
import sys

import pytest
import torch
from launch import environment, run_several
from small import config

import zerorun
from zerorun import as_deepspeed, lone_zero_to_fp32, zero_to_fp32


def test_objects(tmp_path, monkeypatch):
    """At stages 0, 2 and 3. Then what the script beside the checkpoint of stage 3 writes."""
    folders = {stage: tmp_path / str(stage) for stage in (0, 2, 3)}
    output = run_several([("deepspeed_objects.py", folder, stage) for stage, folder in folders.items()], kind="zerorun as deepspeed")
    assert output.count("done") == 6
    expected = torch.load(folders[3] / "expected.pt")

    def is_whole(folder):
        found = {}
        for path in folder.glob("*.bin"):
            found.update(torch.load(path))
        return found.keys() == expected.keys() and all(torch.equal(found[name], expected[name]) for name in found)

    script, out = str(folders[3] / "zero_to_fp32.py"), tmp_path / "out"
    subprocess.run([sys.executable, script, str(folders[3]), str(out)], env={**environment(), "PYTHONPATH": ""}, check=True, timeout=60)
    assert [path.name for path in out.iterdir()] == ["pytorch_model.bin"] and is_whole(out)
    zero_to_fp32.main([str(folders[3]), str(tmp_path / "sharded"), "--max_shard_size", "300B"])
    written = sorted(path.name for path in (tmp_path / "sharded").iterdir())
    assert written[-1] == "pytorch_model.bin.index.json" and len(written) > 2 and is_whole(tmp_path / "sharded")
    zero_to_fp32.main([str(folders[3]), str(tmp_path / "safe"), "--safe_serialization"])
    assert (tmp_path / "safe" / "model.safetensors").exists()
    monkeypatch.setitem(sys.modules, "zerorun.zero_to_fp32", None)  # as if the package were not installed
    monkeypatch.setattr(sys, "argv", [script, str(folders[3]), str(tmp_path / "alone")])
    runpy.run_path(script, run_name="__main__")
    assert is_whole(tmp_path / "alone")
    next(folders[3].glob("global_step*/bucket-*")).unlink()
    with pytest.raises(SystemExit, match="no file: the checkpoint is not whole"):
        runpy.run_path(script, run_name="__main__")


def test_a_checkpoint_is_read_without_the_package(tmp_path):
    """Tied, transposed and frozen parameters, and buffers, as the package reads them."""
    class Net(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.words, self.head = torch.nn.Embedding(9, 7), torch.nn.Linear(7, 9, bias=False)
            self.head.weight = self.words.weight
            self.transposed = torch.nn.Parameter(torch.randn(4, 7).t())
            self.fixed = torch.nn.Linear(3, 3).requires_grad_(False)
            self.register_buffer("table", torch.arange(3))

        def forward(self, tokens):
            return (self.head(self.words(tokens)) @ self.head.weight @ self.transposed).sum()

    for stage, bf16 in ((0, True), (3, True), (3, False)):
        folder = tmp_path / f"{stage}{bf16}"
        engine = zerorun.initialize(model=Net(), config={**config(stage), "bf16": {"enabled": bf16}})[0]
        engine.backward(engine(torch.arange(9)))
        engine.step()
        engine.save_checkpoint(folder)
        for fixed_too in (True, False):
            found = lone_zero_to_fp32.read_checkpoint(folder, exclude_frozen_parameters=not fixed_too)
            expected = zero_to_fp32.get_fp32_state_dict_from_zero_checkpoint(folder, exclude_frozen_parameters=not fixed_too)
            assert found.keys() == expected.keys() and ("fixed.weight" in found) == fixed_too and "head.weight" in found
            assert all(torch.equal(value, expected[name]) and value.dtype == expected[name].dtype for name, value in found.items())


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
