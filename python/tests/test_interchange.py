"""C++ (samples/gpt2) and Python train the same: losses are equal to the bit, and a training may change between both at
checkpoints."""

import csv
import json
import pathlib
import subprocess

import pytest
from launch import ALL, BUILD, environment, launcher, run

GPT2 = BUILD / "bin/gpt2"
TEXT = pathlib.Path("/usr/share/common-licenses/GPL-3")

pytestmark = pytest.mark.skipif(not GPT2.exists(), reason="build/bin/gpt2 is not built: scripts/build release gpt2")


def config(stage, precision):
    more = {precision: {"enabled": True}} if precision != "fp32" else {}
    return {"train_micro_batch_size_per_gpu": 2, "optimizer": {"type": "AdamW", "params": {"lr": 1e-3, "weight_decay": 0.1}},
            "scheduler": {"type": "WarmupLR", "params": {"warmup_max_lr": 1e-3, "warmup_num_steps": 5}},
            "zero_optimization": {"stage": stage, "stage3_param_persistence_threshold": 0}, **more}


def train_in_cpp(folder, name, conf, *arguments, **variables):
    """Returns the losses in the order of steps."""
    (folder / "text").write_bytes(TEXT.read_bytes()[:32768])
    (folder / "config.json").write_text(json.dumps(conf))
    log = folder / f"{name}.csv"
    command = [*launcher("zerorun", 2), str(GPT2), "--deepspeed", str(folder / "config.json"), "--data",
               str(folder / "text"), "--layers", "2", "--hidden", "64", "--heads", "4", "--seq", "32", "--sequential",
               "--generate", "0", "--csv", str(log), *map(str, arguments)]
    done = subprocess.run(command, env=environment(**variables), stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
                          text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stdout
    with open(log, encoding="utf-8") as file:
        return [float(row["loss"]) for row in csv.DictReader(file)]


def train_in_python(folder, jobs, **variables):
    (folder / "jobs.json").write_text(json.dumps([{"text": str(folder / "text"), **job} for job in jobs]))
    run("interchange.py", folder / "jobs.json", folder / "losses.json", **variables)
    return json.loads((folder / "losses.json").read_text())


@pytest.mark.parametrize("comm, precisions", [("shm", ["fp32", "bf16"]), ("gloo", ["fp32", "bf16"])] if ALL else [
    ("shm", ["bf16"]), ("gloo", ["fp32"])])
def test_losses_are_those_of_cpp_to_the_bit(comm, precisions, tmp_path):
    expected, jobs = {}, []
    for precision in precisions:
        saved = tmp_path / precision
        losses = train_in_cpp(tmp_path, precision, config(1, precision), "--steps", 6, "--save-dir", saved, "--save-every", 1,
                              ZERORUN_COMM=comm)
        (saved / "latest").write_text("global_step1")
        for stage in range(4):
            jobs.append({"config": config(stage, precision), "source": str(saved), "steps": 5})
            expected[precision, stage] = losses[1:]
    found = train_in_python(tmp_path, jobs, ZERORUN_COMM=comm)
    assert dict(zip(expected, found)) == expected


def test_cpp_python_cpp(tmp_path):
    conf, a, b, c = config(3, "fp32"), tmp_path / "a", tmp_path / "b", tmp_path / "c"
    alone = train_in_cpp(tmp_path, "alone", conf, "--steps", 9, "--save-dir", a, "--save-every", 3)
    (a / "latest").write_text("global_step3")
    state = json.loads((a / "global_step6/manifest.json").read_text())["client_state"]
    job = {"config": conf, "source": str(a), "steps": 3}
    # The loop in Python has no position in the data, so it says how many samples all ranks have used: 2 ranks x 2.
    jobs = [{**job, "target": str(b), "client_state": {**state, "next_sample": 6 * 4}},
            {**job, "target": str(c), "client_state": state}]
    assert train_in_python(tmp_path, jobs) == [alone[3:6]] * 2
    assert train_in_cpp(tmp_path, "resumed", conf, "--steps", 9, "--resume", b) == alone[6:]
    with pytest.raises(AssertionError, match="does not say how far its run came in the data"):
        train_in_cpp(tmp_path, "without a position", conf, "--steps", 9, "--resume", c)
