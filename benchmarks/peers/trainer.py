"""Times steps of transformers' Trainer through ZeroRun, through DeepSpeed and by DistributedDataParallel, in turns, on the CPU with
one thread per rank.

benchmarks/peers/trainer runs this in the environment with the peers. The ranks of all cases of a stage exist at the same time and
take turns of a few steps, so that noise of the machine affects all of them. All train the same model on the same batches, and their
losses are compared. Memory is the mean proportional set size of the ranks at the end of their turns. With --long each case trains
alone, evaluates and saves, and says its memory after each save."""

import argparse
import importlib.metadata
import json
import os
import statistics
import sys
import tempfile

import torch
from jobs import Job, pss_of

HERE = os.path.dirname(os.path.abspath(__file__))
SHAPES = {
    "tiny": {"layers": 2, "hidden": 64, "heads": 4, "vocab": 256, "seq": 32, "micro_batch": 2},
    "small": {"layers": 6, "hidden": 512, "heads": 8, "vocab": 8192, "seq": 128, "micro_batch": 4},
}
PROGRAM = [os.path.join(HERE, "trainer_rank.py")]
COMMANDS = {"ZeroRun": [sys.executable, "-m", "zerorun.as_deepspeed", *PROGRAM], "DeepSpeed": [sys.executable, *PROGRAM],
            "plain torch": [sys.executable, *PROGRAM]}
ENGINES = {"ZeroRun": "zerorun.", "DeepSpeed": "deepspeed.runtime.engine.", "plain torch": "torch.nn.parallel.distributed."}
TOLERANCE = 1e-4  # of losses, relative


def start(name, stage, options, folder, *more):
    command = [*COMMANDS[name], "--shape", json.dumps(SHAPES[options.model]), "--folder", os.path.join(folder, name), *more]
    if name != "plain torch":
        command += ["--stage", str(stage)]
    return Job(name, command, options.ranks, {"ZERORUN_DEVICE": "cpu", "DS_ACCELERATOR": "cpu"})


def end(job):
    for rank in job.ranks:
        rank.stdin.close()
    engine = job.listen("over")["engine"]
    if not engine.startswith(ENGINES[job.name]):
        sys.exit(f"{job.name} was trained by {engine}")
    job.end()


def check_losses(losses):
    reference = losses["plain torch"]
    for name, found in losses.items():
        for step, (mine, theirs) in enumerate(zip(found, reference, strict=True)):
            if not abs(mine - theirs) <= TOLERANCE * abs(theirs):
                sys.exit(f"{name} trains something else: its step {step} has loss {mine}, plain torch's {theirs}")


def time_steps(stage, options, folder):
    jobs = {name: start(name, stage, options, folder) for name in COMMANDS}
    losses = {name: job.turn(options.warm_up)["losses"] for name, job in jobs.items()}
    times = {name: [] for name in jobs}
    for _ in range(options.turns):
        for name, job in jobs.items():
            turn = job.turn(options.steps)
            times[name].append(statistics.median(turn["step_ms"]))
            losses[name] += turn["losses"]
    check_losses(losses)
    for name, job in jobs.items():
        ratio = statistics.median(ours / theirs for ours, theirs in zip(times["ZeroRun"], times[name]))
        memory = sum(pss_of(rank.pid) for rank in job.ranks) / options.ranks
        print(f"{stage:5} {name:12} {statistics.median(times[name]):8.1f} {min(times[name]):8.1f} {max(times[name]):8.1f} {ratio:14.3f}"
              f" {memory / 1e6:8.1f}", flush=True)
    for job in jobs.values():
        end(job)


def watch_memory(stage, options, folder):
    for name in COMMANDS:
        job = start(name, stage, options, folder, "--steps", str(options.long), "--every", str(options.long // 10))
        memory = [job.listen("saved")["pss"] / 1e6 for _ in range(10)]
        end(job)
        print(f"{stage:5} {name:12} MB after each tenth of {options.long} steps:", *(f"{one:.1f}" for one in memory), flush=True)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", choices=tuple(SHAPES), default="small")
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--stages", type=int, nargs="+", default=[2, 3])
    parser.add_argument("--turns", type=int, default=7)
    parser.add_argument("--steps", type=int, default=3, help="steps of a turn")
    parser.add_argument("--warm-up", type=int, default=3)
    parser.add_argument("--long", type=int, metavar="STEPS", help="memory of rank 0 over as many steps with evaluation and saving")
    options = parser.parse_args()
    packages = ", ".join(f"{name} {importlib.metadata.version(name)}" for name in ("transformers", "accelerate", "deepspeed"))
    print(f"torch {torch.__version__}, {packages}; {options.ranks} ranks of 1 thread, {options.model} model, fp32")
    if not options.long:
        print(f"medians of {options.turns} turns of {options.steps} steps\n"
              "stage case          step ms      min      max  ZeroRun's/its   PSS MB")
    for stage in options.stages:
        with tempfile.TemporaryDirectory() as folder:
            (watch_memory if options.long else time_steps)(stage, options, folder)


if __name__ == "__main__":
    main()
