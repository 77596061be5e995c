"""One rank of a peer: trains the GPT-2 of gpt2.py on one batch and prints the time of each step, like bench_training."""

import argparse
import contextlib
import importlib
import json
import os
import sys
import time

import torch
import torch.distributed as dist
from gpt2 import Gpt2


ENGINES = {"deepspeed": "deepspeed", "zerorun_python": "zerorun"}  # modules with DeepSpeed's interface


def say(event):
    print(json.dumps(event), flush=True)


def make_engine_step(module, config, model, tokens):
    with contextlib.redirect_stdout(sys.stderr):
        engine, *_ = module.initialize(model=model, model_parameters=list(model.parameters()), config=config)

    def step():
        loss = engine(tokens)
        engine.backward(loss)
        engine.step()
        return loss

    return step


def make_torch_step(peer, config, model, tokens):
    settings = {key: value for key, value in config["optimizer"]["params"].items() if key in ("lr", "weight_decay")}
    net = model
    if peer in ("ddp", "zero_redundancy"):
        net = torch.nn.parallel.DistributedDataParallel(model, gradient_as_bucket_view=True)
    if peer.startswith("fsdp2"):
        from torch.distributed.device_mesh import init_device_mesh
        from torch.distributed.fsdp import fully_shard

        mesh = init_device_mesh("cpu", (dist.get_world_size(),))
        reshard = peer == "fsdp2"
        for block in model.transformer.h:
            fully_shard(block, mesh=mesh, reshard_after_forward=reshard)
        fully_shard(model, mesh=mesh, reshard_after_forward=reshard)
    if peer == "zero_redundancy":
        from torch.distributed.optim import ZeroRedundancyOptimizer

        optimizer = ZeroRedundancyOptimizer(net.parameters(), torch.optim.AdamW, fused=True, **settings)
    else:
        optimizer = torch.optim.AdamW(net.parameters(), fused=True, **settings)

    def step():
        loss = net(tokens)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(net.parameters(), config["gradient_clipping"])
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        return loss

    return step


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--peer", required=True, help="zerorun_python, ddp, zero_redundancy, fsdp2, fsdp2_kept, deepspeed")
    parser.add_argument("--config", required=True, help="a ds_config.json")
    parser.add_argument("--shape", type=json.loads, required=True)
    parser.add_argument("--steps", type=int, default=8)
    parser.add_argument("--on-demand", action="store_true", help="read numbers of steps from standard input")
    options = parser.parse_args()
    with open(options.config, encoding="utf-8") as file:
        config = json.load(file)
    torch.set_num_threads(1)
    rank, world = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    if options.peer == "deepspeed":
        import deepspeed

        with contextlib.redirect_stdout(sys.stderr):
            deepspeed.init_distributed(dist_backend="gloo")
    elif options.peer != "zerorun_python":
        dist.init_process_group("gloo", rank=rank, world_size=world)
    shape = options.shape
    model = Gpt2(shape)
    tokens = torch.randint(
        0, shape["vocab"], (shape["micro_batch"], shape["seq"]), generator=torch.Generator().manual_seed(rank + 1)
    )
    if options.peer in ENGINES:
        step = make_engine_step(importlib.import_module(ENGINES[options.peer]), config, model, tokens)
    else:
        step = make_torch_step(options.peer, config, model, tokens)

    done = 0

    def run(steps):
        nonlocal done
        times = torch.zeros(steps, dtype=torch.float64)
        losses = torch.zeros(steps, dtype=torch.float64)
        for number in range(steps):
            begin = time.perf_counter()
            loss = step()
            times[number] = (time.perf_counter() - begin) * 1e3
            done += 1
            if done == 1 and rank == 0:
                say({"event": "first step"})
            losses[number] = loss.item()
        dist.all_reduce(times, dist.ReduceOp.MAX)
        dist.all_reduce(losses)
        if rank == 0:
            say({"event": "steps", "step_ms": times.tolist(), "losses": (losses / world).tolist()})

    if options.on_demand:
        for line in sys.stdin:
            run(int(line))
    else:
        run(options.steps)
    dist.barrier()
    os._exit(0)


if __name__ == "__main__":
    main()
