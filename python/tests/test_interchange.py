"""A training that changes between C++ (samples/gpt2) and Python at checkpoints has the losses of C++ alone."""

import csv
import json
import pathlib
import subprocess

import pytest
from launch import SOURCE, environment, run

GPT2 = SOURCE / "build/bin/gpt2"
TEXT = pathlib.Path("/usr/share/common-licenses/GPL-3")


def train_in_cpp(folder, name, *arguments):
    """Returns the losses by step."""
    log = folder / f"{name}.csv"
    command = ["zerorun", "--num_gpus", "2", str(GPT2), "--deepspeed", str(folder / "config.json"), "--data",
               str(folder / "text"), "--layers", "2", "--hidden", "64", "--heads", "4", "--seq", "32", "--sequential",
               "--generate", "0", "--csv", str(log), *map(str, arguments)]
    done = subprocess.run(command, env=environment(), stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
                          timeout=120, check=False)
    assert done.returncode == 0, done.stdout
    with open(log, encoding="utf-8") as file:
        return {int(row["step"]): row["loss"] for row in csv.DictReader(file)}


def client_state(checkpoint):
    return json.loads((checkpoint / "manifest.json").read_text())["client_state"]


@pytest.mark.skipif(not GPT2.exists(), reason="build/bin/gpt2 is not built: scripts/build release gpt2")
@pytest.mark.parametrize("stage", [1, 3])
def test_cpp_python_cpp(stage, tmp_path):
    (tmp_path / "text").write_bytes(TEXT.read_bytes()[:32768])
    (tmp_path / "config.json").write_text(json.dumps({
        "train_micro_batch_size_per_gpu": 2, "optimizer": {"type": "AdamW", "params": {"lr": 1e-3, "weight_decay": 0.1}},
        "scheduler": {"type": "WarmupLR", "params": {"warmup_max_lr": 1e-3, "warmup_num_steps": 5}},
        "zero_optimization": {"stage": stage, "stage3_param_persistence_threshold": 0}}))
    alone = train_in_cpp(tmp_path, "alone", "--steps", 9, "--save-dir", tmp_path / "a", "--save-every", 3)
    (tmp_path / "a/latest").write_text("global_step3")
    (tmp_path / "state.json").write_text(json.dumps(client_state(tmp_path / "a/global_step6")))
    run("interchange.py", tmp_path / "config.json", tmp_path / "text", tmp_path / "a", tmp_path / "b", 3,
        tmp_path / "losses.json", tmp_path / "state.json")
    in_python = json.loads((tmp_path / "losses.json").read_text())
    first = min(alone)
    assert in_python == pytest.approx([float(alone[first + step]) for step in (3, 4, 5)], rel=1e-6)
    resumed = train_in_cpp(tmp_path, "resumed", "--steps", 9, "--resume", tmp_path / "b")
    for step in (6, 7, 8):
        assert float(resumed[first + step]) == pytest.approx(float(alone[first + step]), rel=1e-6)
