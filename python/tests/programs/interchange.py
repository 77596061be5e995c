"""Trainings of the GPT-2 of samples/gpt2, from checkpoints, on the same data as there. interchange.py JOBS.json OUT.json: each
job has config, text, source, steps, and target with client_state if it saves. OUT has the losses of each."""

import json
import pathlib
import sys

import torch

import zerorun
from golden_data import SEQ
from gpt2 import Gpt2


def batch(tokens, engine):
    rows, micro_batch = [], engine.train_micro_batch_size_per_gpu()
    for j in range(micro_batch):
        offset = ((engine.global_steps * engine.world_size + engine.global_rank) * micro_batch + j) * SEQ % (len(tokens) - SEQ)
        rows.append(list(tokens[offset:offset + SEQ]))
    return torch.tensor(rows)


def train(job):
    engine, *_ = zerorun.initialize(model=Gpt2(), config=job["config"])
    engine.load_checkpoint(job["source"])
    tokens, losses = pathlib.Path(job["text"]).read_bytes(), []
    for _ in range(job["steps"]):
        loss = engine(batch(tokens, engine))
        engine.backward(loss)
        engine.step()
        every = [None] * engine.world_size
        zerorun.comm.all_gather_object(every, float(loss.detach()))
        losses.append(sum(every) / len(every))
    if "target" in job:
        engine.save_checkpoint(job["target"], client_state=job["client_state"])
    return losses


torch.set_num_threads(1)
found = [train(job) for job in json.loads(pathlib.Path(sys.argv[1]).read_text())]
if zerorun.comm.get_rank() == 0:
    pathlib.Path(sys.argv[2]).write_text(json.dumps(found))
