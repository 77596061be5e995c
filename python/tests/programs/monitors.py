"""What reaches wandb and comet_ml, of which there are stand-ins, CSV files and the run log. monitors.py FOLDER"""

import json
import pathlib
import sys
import types

import torch

import zerorun
from small import config, net

calls = []
wandb = types.ModuleType("wandb")
wandb.init = lambda **settings: calls.append(("init", settings))
wandb.log = lambda data, step=None: calls.append(("log", data, step))
sys.modules["wandb"] = wandb


class Experiment:
    def set_name(self, name):
        calls.append(("name", name))

    def log_metric(self, name, value, step=None):
        if name == "eval/loss":
            raise RuntimeError("the server is gone")
        calls.append(("metric", name, step))


comet = types.ModuleType("comet_ml")
comet.start = lambda **settings: calls.append(("start", settings)) or Experiment()
sys.modules["comet_ml"] = comet

folder = pathlib.Path(sys.argv[1])
engine, *_ = zerorun.initialize(model=net(), config=config(
    2, gradient_accumulation_steps=2, csv_monitor={"enabled": True, "output_path": str(folder), "job_name": "job"},
    wandb={"enabled": True, "group": "mine", "project": "theirs"}, comms_logger={"enabled": True},
    comet={"enabled": True, "samples_log_interval": 16, "api_key": "hidden-word", "experiment_name": "first"},
    zerorun={"run_log": {"path": str(folder / "log"), "hashes": True}}))
losses = []
for step in range(3):
    losses.append(0)
    for micro in range(2):
        loss = engine(torch.full((2, 6), step + micro + engine.global_rank / 4)).pow(2).mean()
        losses[-1] += loss.item() / 2
        engine.backward(loss)
        engine.step()
plain, *_ = zerorun.initialize(model=net(), config=config(
    3, gradient_accumulation_steps=2, zerorun={"run_log": {"path": str(folder / "plain"), "hashes": True}}))
for micro in range(2):
    plain(torch.full((2, 6), micro + plain.global_rank / 4)).pow(2).mean().backward()
    plain.step()
plain.destroy()
engine.log("eval/loss", torch.tensor(0.5))
try:
    engine.log("", 1)
except zerorun.UserError as error:
    assert "expected a tag" in str(error), error
else:
    raise AssertionError("an empty tag is taken")
samples = [4 * engine.world_size * (step + 1) for step in range(3)]
table = engine.log_communication()
zerorun.comm.log_summary()
assert zerorun.comm.has_comm_data()
if engine.global_rank != 0:
    assert calls == [] and table == "", calls
    engine.destroy()
    sys.exit()
assert "reduce_scatter" in table, table
assert calls[:3] == [("init", {"project": "theirs", "group": "mine", "entity": None}),
                     ("start", {"project": None, "workspace": None, "api_key": "hidden-word", "experiment_key": None, "online": None,
                                "mode": None}), ("name", "first")], calls[:3]
logged = [(step, *data) for kind, data, step in (call for call in calls if call[0] == "log")]
tags = ["Train/Samples/train_loss", "Train/Samples/lr", "Train/Samples/grad_norm"]
assert logged == [*((at, tag) for at in samples for tag in tags), (samples[-1], "eval/loss")], logged
found = [data[tags[0]] for kind, data, step in (call for call in calls if call[0] == "log") if tags[0] in data]
assert torch.allclose(torch.tensor(found), torch.tensor(losses)), (found, losses)
metrics = [call[1:] for call in calls if call[0] == "metric"]
assert metrics == [(tag, at) for at in (samples[0], samples[2]) for tag in tags], metrics
rows = (folder / "job" / "Train_Samples_train_loss.csv").read_text().splitlines()
assert rows[0] == "step,train_loss" and [int(row.split(",")[0]) for row in rows[1:]] == samples, rows
assert (folder / "job" / "eval_loss.csv").read_text() == f"step,loss\n{samples[-1]},0.5\n"
assert "hidden-word" not in engine.resolved_config
run = (folder / "log" / "run.json").read_text()
assert "hidden-word" not in run and [p["name"] for p in json.loads(run)["parameters"]] == [n for n, _ in net().named_parameters()], run
began, start, *steps = map(json.loads, (folder / "log" / "steps.jsonl").read_text().splitlines())
assert began["event"] == "began" and start["step"] == 0 and start["start"] and [step["step"] for step in steps] == [1, 2, 3], (start, steps)
assert [step["losses"][0] for step in steps] == found and [step["samples"] for step in steps] == samples, steps
first = json.loads((folder / "plain" / "steps.jsonl").read_text().splitlines()[2])
assert first["loss"] is None and first["losses"] == [] and first["gradients"] == steps[0]["gradients"], (first, steps[0])
engine.destroy()
print("as expected", flush=True)
