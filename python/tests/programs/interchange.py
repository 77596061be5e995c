"""Continues a checkpoint of samples/gpt2 with the same data: interchange.py CONFIG TEXT FROM TO STEPS OUT CLIENT_STATE"""

import json
import pathlib
import sys

import torch

import zerorun
from golden_data import SEQ
from gpt2 import Gpt2

config, text, source, target, steps, out, state = sys.argv[1:]
torch.set_num_threads(1)
engine, *_ = zerorun.initialize(model=Gpt2(), config=config)
tokens = pathlib.Path(text).read_bytes()
path, _ = engine.load_checkpoint(source)
losses, micro_batch = [], engine.train_micro_batch_size_per_gpu()
for step in range(engine.global_steps, engine.global_steps + int(steps)):
    rows = []
    for j in range(micro_batch):
        offset = ((step * engine.world_size + engine.global_rank) * micro_batch + j) * SEQ % (len(tokens) - SEQ)
        rows.append(list(tokens[offset:offset + SEQ]))
    loss = engine(torch.tensor(rows))
    engine.backward(loss)
    engine.step()
    every = [None] * engine.world_size
    zerorun.comm.all_gather_object(every, float(loss.detach()))
    losses.append(sum(every) / len(every))
engine.save_checkpoint(target, client_state=json.loads(pathlib.Path(state).read_text()))
if engine.global_rank == 0:
    pathlib.Path(out).write_text(json.dumps(losses))
