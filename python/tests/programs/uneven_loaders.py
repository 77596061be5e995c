"""One rank has a batch more than the others, and the others go on to save. Arguments: STAGE FOLDER"""

import sys

import torch
import zerorun

stage, folder = int(sys.argv[1]), sys.argv[2]
model = torch.nn.Sequential(torch.nn.Linear(6, 6), torch.nn.Linear(6, 1))
engine, _, loader, _ = zerorun.initialize(model=model, training_data=[torch.ones(6)] * 7, config={
    "train_micro_batch_size_per_gpu": 2, "optimizer": {"type": "SGD", "params": {"lr": 0.1}},
    "zero_optimization": {"stage": stage, "stage3_param_persistence_threshold": 0}})
assert len(list(loader)) == 2  # the engine's own loader has the same number of batches on all ranks
for _ in range(3 if engine.global_rank == 0 else 2):
    engine.backward(engine(torch.ones(2, 6)).sum())
    engine.step()
engine.save_checkpoint(folder)
