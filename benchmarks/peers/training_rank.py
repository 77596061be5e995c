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
from gpt2 import make_model


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


class MasterWeights:
    """An optimizer of fp32 copies of 16-bit parameters. The parameters get the rounded copies after each step."""

    def __init__(self, parameters, make_optimizer):
        self.parameters = list(parameters)
        self.masters = [parameter.detach().float().requires_grad_() for parameter in self.parameters]
        self.optimizer = make_optimizer(self.masters)

    def clip(self, limit):
        for parameter, master in zip(self.parameters, self.masters):
            master.grad = parameter.grad.float()
        torch.nn.utils.clip_grad_norm_(self.masters, limit)

    def step(self):
        self.optimizer.step()
        with torch.no_grad():
            torch._foreach_copy_(self.parameters, self.masters)

    def zero_grad(self):
        self.optimizer.zero_grad()
        for parameter in self.parameters:
            parameter.grad = None


class Weights:
    """An optimizer of the parameters themselves."""

    def __init__(self, parameters, make_optimizer):
        self.parameters = list(parameters)
        self.optimizer = make_optimizer(self.parameters)

    def clip(self, limit):
        torch.nn.utils.clip_grad_norm_(self.parameters, limit)

    def step(self):
        self.optimizer.step()

    def zero_grad(self):
        self.optimizer.zero_grad(set_to_none=True)


def shard(model, device, dtype, reshard):
    """Shards the model by FSDP2, which keeps fp32 weights, and gathers them in `dtype`."""
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard

    options = {"mesh": init_device_mesh(device.type, (dist.get_world_size(),)), "reshard_after_forward": reshard}
    if dtype != torch.float32:
        options["mp_policy"] = MixedPrecisionPolicy(param_dtype=dtype, reduce_dtype=dtype)
    for block in model.transformer.h:
        fully_shard(block, **options)
    fully_shard(model, **options)


def make_torch_step(peer, config, model, tokens, device, dtype):
    settings = {key: value for key, value in config["optimizer"]["params"].items() if key in ("lr", "weight_decay")}
    kind, net = Weights, model

    def make_optimizer(parameters):
        return torch.optim.AdamW(parameters, fused=True, **settings)

    if peer in ("ddp", "zero_redundancy"):
        if dtype != torch.float32:
            model.to(dtype)
            kind = MasterWeights
        ids = [device] if device.type == "cuda" else None
        net = torch.nn.parallel.DistributedDataParallel(model, device_ids=ids, gradient_as_bucket_view=True)
    if peer.startswith("fsdp2"):
        shard(model, device, dtype, reshard=peer == "fsdp2")
    if peer == "zero_redundancy":
        from torch.distributed.optim import ZeroRedundancyOptimizer

        def make_optimizer(parameters):  # noqa: F811
            return ZeroRedundancyOptimizer(parameters, torch.optim.AdamW, fused=True, **settings)

    optimizer = kind(net.parameters(), make_optimizer)

    def step():
        loss = net(tokens)
        loss.backward()
        optimizer.clip(config["gradient_clipping"])
        optimizer.step()
        optimizer.zero_grad()
        return loss

    return step


def wait_for(device):
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--peer", required=True, help="zerorun_python, ddp, zero_redundancy, fsdp2, fsdp2_kept, deepspeed, plain_torch")
    parser.add_argument("--config", required=True, help="a ds_config.json")
    parser.add_argument("--shape", type=json.loads, required=True)
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    parser.add_argument("--steps", type=int, default=8)
    parser.add_argument("--on-demand", action="store_true", help="read numbers of steps from standard input")
    options = parser.parse_args()
    with open(options.config, encoding="utf-8") as file:
        config = json.load(file)
    torch.set_num_threads(1)
    rank, world = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    device = torch.device(options.device)
    if device.type == "cuda":
        device = torch.device("cuda", int(os.environ["LOCAL_RANK"]))
        torch.cuda.set_device(device)
    if options.peer == "deepspeed":
        import deepspeed

        with contextlib.redirect_stdout(sys.stderr):
            deepspeed.init_distributed(dist_backend="gloo")
    elif options.peer != "zerorun_python":
        # Gloo for tensors on the CPU, in which ranks exchange their times.
        backend = "gloo" if device.type == "cpu" else "cpu:gloo,cuda:nccl"
        dist.init_process_group(backend, rank=rank, world_size=world)
    shape, dtype = options.shape, torch.bfloat16 if config.get("bf16", {}).get("enabled") else torch.float32
    model = make_model(shape, dtype).to(device)
    tokens = torch.randint(
        0, shape["vocab"], (shape["micro_batch"], shape["seq"]), generator=torch.Generator().manual_seed(rank + 1)
    ).to(device)
    if options.peer in ENGINES:
        step = make_engine_step(importlib.import_module(ENGINES[options.peer]), config, model, tokens)
    else:
        step = make_torch_step(options.peer, config, model, tokens, device, dtype)

    done = 0

    def run(steps):
        nonlocal done
        # As in bench_training: a GPU runs all steps without a wait in between, and each gets the mean of their times.
        times = torch.zeros(steps, dtype=torch.float64)
        losses = []
        wait_for(device)
        first = time.perf_counter()
        for number in range(steps):
            begin = time.perf_counter()
            loss = step()
            times[number] = (time.perf_counter() - begin) * 1e3
            done += 1
            if done == 1:
                wait_for(device)
                if rank == 0:
                    say({"event": "first step"})
            losses.append(loss.detach())
        wait_for(device)
        if device.type == "cuda":
            times.fill_((time.perf_counter() - first) * 1e3 / steps)
        losses = torch.stack(losses).double().cpu()
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
