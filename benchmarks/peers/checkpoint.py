"""Times a training step followed by a checkpoint: ZeroRun and DeepSpeed take turns, on the CPU, one thread per rank.

benchmarks/peers/checkpoint runs this in the environment with DeepSpeed. Both runtimes train a GPT-2 of 23 M parameters
at stage 2 on two ranks. The figures are medians over turns. ZeroRun's checkpoints are durable (synced) and are written
while the next step runs. DeepSpeed's save_checkpoint returns when its files are in the page cache; the time to sync
them is printed separately.
"""

import argparse
import json
import os
import shutil
import socket
import statistics
import subprocess
import sys
import tempfile
import time

SHAPE = {"layers": 6, "hidden": 512, "heads": 8, "vocab": 8192, "seq": 128, "micro_batch": 4}
CONFIG = {
    "train_micro_batch_size_per_gpu": SHAPE["micro_batch"],
    "optimizer": {"type": "AdamW", "params": {"lr": 1e-4, "weight_decay": 0.01}},
    "gradient_clipping": 1.0,
    "zero_optimization": {"stage": 2, "overlap_comm": True},
    "steps_per_print": 1000000000,
}
RANKS = 2


def train_rank(folder, steps):
    """Runs one rank of DeepSpeed: a block of steps without saves, then a block with saves."""
    import contextlib

    with contextlib.redirect_stdout(sys.stderr):
        import deepspeed
        import torch
        import torch.distributed as dist
        from gpt2 import Gpt2

        torch.set_num_threads(1)
        deepspeed.init_distributed(dist_backend="gloo")
        rank = dist.get_rank()
        model = Gpt2(SHAPE)
        engine, *_ = deepspeed.initialize(model=model, model_parameters=list(model.parameters()), config=CONFIG)
        tokens = torch.randint(
            0, SHAPE["vocab"], (SHAPE["micro_batch"], SHAPE["seq"]), generator=torch.Generator().manual_seed(rank + 1)
        )

        def block(saves):
            dist.barrier()
            begin = time.perf_counter()
            for number in range(steps):
                loss = engine(tokens)
                engine.backward(loss)
                engine.step()
                if saves:
                    engine.save_checkpoint(folder, tag=f"step{number}")
                    dist.barrier()
                    if rank == 0 and number > 0:
                        shutil.rmtree(os.path.join(folder, f"step{number - 1}"))
            dist.barrier()
            return (time.perf_counter() - begin) * 1e3 / steps

        block(False)
        without, saving = block(False), block(True)
        begin = time.perf_counter()
        if rank == 0:
            os.sync()
        dist.barrier()
        sync = (time.perf_counter() - begin) * 1e3
    if rank == 0:
        print(json.dumps({"step_ms": without, "step_with_save_ms": saving, "sync_ms": sync}), flush=True)
    dist.barrier()
    os._exit(0)


def run_deepspeed(folder, steps):
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        port = listener.getsockname()[1]
    command = [sys.executable, os.path.abspath(__file__), "--rank", folder, "--steps", str(steps)]
    with tempfile.TemporaryFile("w+") as errors:
        ranks = []
        for rank in range(RANKS):
            environment = dict(os.environ, OMP_NUM_THREADS="1", MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port))
            environment.update(RANK=str(rank), LOCAL_RANK=str(rank))
            environment.update({name: str(RANKS) for name in ("WORLD_SIZE", "LOCAL_WORLD_SIZE", "LOCAL_SIZE")})
            ranks.append(subprocess.Popen(command, stdout=subprocess.PIPE, stderr=errors, text=True, env=environment))
        output = [rank.communicate()[0] for rank in ranks][0]
        found = [line for line in output.splitlines() if line.startswith('{"step_ms"')]
        if not found:
            errors.seek(0)
            sys.exit(f"DeepSpeed has failed:\n{errors.read()[-4000:]}")
    return json.loads(found[0])


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--bench", help="build/bin/bench_checkpoint")
    parser.add_argument("--to", default=tempfile.gettempdir(), help="a folder on the disk to be measured")
    parser.add_argument("--turns", type=int, default=3)
    parser.add_argument("--steps", type=int, default=10, help="of a block")
    parser.add_argument("--rank", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.rank:
        train_rank(options.rank, options.steps)
    turns = {"ZeroRun": [], "DeepSpeed": []}
    with tempfile.TemporaryDirectory(dir=options.to) as folder:
        for _ in range(options.turns):
            output = subprocess.run(
                [options.bench, "--folder", folder, "--rounds", "1", "--steps", str(options.steps), "--json"],
                check=True, stdout=subprocess.PIPE, text=True,
            ).stdout
            turns["ZeroRun"].append(json.loads(output))
            turns["DeepSpeed"].append(run_deepspeed(os.path.join(folder, "deepspeed"), options.steps))
    print(f"GPT-2 of 23 M parameters, stage 2, {RANKS} ranks of one thread; medians of {options.turns} turns")
    for name, found in turns.items():
        middle = {key: statistics.median(turn[key] for turn in found) for key in ("step_ms", "step_with_save_ms")}
        ratio = statistics.median(turn["step_with_save_ms"] / turn["step_ms"] for turn in found)
        print(f"{name:10} a step {middle['step_ms']:8.1f} ms, with a checkpoint {middle['step_with_save_ms']:8.1f} ms, {ratio:.3f}")
    sync = statistics.median(turn["sync_ms"] for turn in turns["DeepSpeed"])
    print(f"DeepSpeed's last checkpoint is durable {sync:.0f} ms later; each of ZeroRun's is")


if __name__ == "__main__":
    main()
