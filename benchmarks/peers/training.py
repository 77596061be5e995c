"""Times training steps of ZeroRun and its peers in turns, on the CPU with one thread per rank, or on GPUs.

benchmarks/peers/training runs this in the environment with the peers. On GPUs (--device cuda) it needs torch, and for the
case zerorun_python the package zerorun; DeepSpeed is left out. The processes of all cases of a stage exist at
the same time and take turns of a few steps, so that noise of the machine affects all of them. The time of a step is
that of its slowest rank; the printed figures are medians. All cases train the same model from the same weights on the
same batches with the same settings, and their losses are compared. Memory is measured in separate runs of each case,
and so is the time from the command to the end of a tiny model's first step. A last run of ZeroRun has
wall_clock_breakdown on, which says how long a step waits for communication.
"""

import argparse
import importlib.metadata
import importlib.util
import json
import os
import platform
import re
import shlex
import shutil
import statistics
import subprocess
import sys
import tempfile
import threading
import time

import torch
from gpt2 import make_model, write_weights
from jobs import Job, pss_of

HERE = os.path.dirname(os.path.abspath(__file__))
SMALL = {"layers": 6, "hidden": 512, "heads": 8, "vocab": 8192, "seq": 128, "micro_batch": 4}
# GPT-2 of 124 M parameters, with its 50,257 tokens padded to a multiple of 64.
GPT2 = {"layers": 12, "hidden": 768, "heads": 12, "vocab": 50304, "seq": 1024, "micro_batch": 8}
# Many operators that compute next to nothing: a step takes the time that the host needs to call them.
TINY = {"layers": 24, "hidden": 32, "heads": 2, "vocab": 64, "seq": 8, "micro_batch": 1}
START_UP = {"layers": 2, "hidden": 64, "heads": 4, "vocab": 256, "seq": 32, "micro_batch": 4}
SHAPES = {"tiny": TINY, "small": SMALL, "124M": GPT2}
# The cases of each stage: the value of --peer for training_rank.py, and the name to print.
OURS = {"zerorun": "ZeroRun", "zerorun_again": "ZeroRun again", "zerorun_python": "ZeroRun from Python"}
CASES = {
    0: OURS | {"ddp": "DDP", "deepspeed": "DeepSpeed"},
    1: OURS | {"zero_redundancy": "ZeroRedundancyOptimizer", "ddp": "DDP", "deepspeed": "DeepSpeed"},
    2: OURS | {"ddp": "DDP", "deepspeed": "DeepSpeed"},
    3: OURS | {"fsdp2": "FSDP2", "fsdp2_kept": "FSDP2, not resharded", "deepspeed": "DeepSpeed"},
}
# With --hosts, where "zerorun" has all ranks talk to each other, as the others do.
BETWEEN_HOSTS = {"zerorun_levels": "ZeroRun on two levels"}
# Training loops of one rank without communication, for --tiny. Each rank trains a model of its own.
ALONE = {"plain": "plain LibTorch", "plain_torch": "plain torch"}
DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16}
# The allowed relative difference of losses. In bf16 every gradient and every sum is rounded to 2^-9 of its value, in
# another order in each runtime.
TOLERANCES = {"fp32": 1e-4, "bf16": 2e-3}
# For the steps after the warm-up, in bf16 on a GPU: on an H200 a C++ and a Python run that agreed there were 2.8e-3 apart after 45 steps,
# when the loss had fallen from 11 to 4. Where the first difference comes from is not known.
LATER_ON_GPUS = 1e-2
# Runs the same program as "zerorun" a second time. The difference between the two shows the noise of this run.
CONTROL = "zerorun_again"


# The cases that can keep optimizer states in files.
WITH_NVME = (*OURS, "deepspeed")


def config_of(stage, shape, options):
    zero = {"stage": stage, "overlap_comm": stage > 0}
    if options.nvme:
        zero["offload_optimizer"] = {"device": "nvme", "nvme_path": options.nvme, "pin_memory": False}
        zero["offload_optimizer"] |= {"pipeline_read": True, "pipeline_write": True}
    return {
        "train_micro_batch_size_per_gpu": shape["micro_batch"],
        "optimizer": {"type": "AdamW", "params": {"lr": 1e-4, "weight_decay": 0.01}},
        "gradient_clipping": 1.0,
        "bf16": {"enabled": options.precision == "bf16"},
        "zero_optimization": zero,
        "steps_per_print": 1000000000,
    }


def gpu_memory():
    """Bytes in use on each GPU, whoever uses them."""
    query = ["nvidia-smi", "--query-gpu=memory.used", "--format=csv,noheader,nounits"]
    answer = subprocess.run(query, capture_output=True, text=True, check=True).stdout
    return [int(line) * 2**20 for line in answer.split()]


class Run(Job):
    """The processes of one case's ranks, from their start to their end."""

    def __init__(self, options, peer, config, shape, weights, steps=None, launched=False):
        command = [os.path.join(options.bin, "bench_training"), "--deepspeed", config, "--weights", weights]
        for key, value in shape.items():
            command += ["--" + key.replace("_", "-"), str(value)]
        if peer == "plain":
            command.append("--plain")
        elif peer not in ("zerorun", CONTROL, *BETWEEN_HOSTS):
            command = [sys.executable, os.path.join(HERE, "training_rank.py"), "--peer", peer, "--config", config]
            command += ["--shape", json.dumps(shape), "--device", options.device]
        command += ["--steps", str(steps)] if steps else ["--on-demand"]
        launcher = [os.path.join(options.bin, "zerorun"), "--num_gpus", str(options.ranks)] if peer in OURS and launched else None
        variables = {"ZERORUN_DEVICE": options.device}
        if options.address:
            variables |= {"ZERORUN_COMM": "two-level" if peer in BETWEEN_HOSTS else "gloo", "GLOO_SOCKET_IFNAME": "eth0"}
        super().__init__(peer, command, options.ranks, variables, launcher, options.hosts, options.address or "127.0.0.1")


class Memory(threading.Thread):
    """Samples the mean memory of a run's ranks, on GPUs that of the GPUs. stop() returns the largest sample in bytes."""

    def __init__(self, run, before):
        super().__init__(daemon=True)
        self.pids, self.before = [rank.pid for rank in run.ranks], before
        self.peak, self.over = 0, threading.Event()
        self.start()

    def sample(self):
        if self.before is None:
            return sum(map(pss_of, self.pids)) / len(self.pids)
        return sum(now - then for now, then in zip(gpu_memory(), self.before)) / len(self.pids)

    def run(self):
        while not self.over.wait(0.02):
            self.peak = max(self.peak, self.sample())

    def stop(self):
        self.over.set()
        self.join()
        return self.peak


def check_losses(name, losses, reference, tolerance, first=0):
    """Returns the largest relative difference. `first`: the number of the first step."""
    for step, (mine, theirs) in enumerate(zip(losses, reference), first):
        if not abs(mine - theirs) <= tolerance * abs(theirs):
            sys.exit(f"{name} trains something else: its step {step} has loss {mine}, the first case's {theirs}")
    return max((abs(mine - theirs) / abs(theirs) for mine, theirs in zip(losses, reference)), default=0.0)


class Stage:
    def __init__(self, options, stage, folder):
        self.options, self.stage = options, stage
        self.shape, self.breakdown = SHAPES[options.model], ""
        self.files = {}
        for shape in (self.shape, START_UP):
            self.files[shape["hidden"]] = (
                self.write_config(shape, os.path.join(folder, f"stage_{stage}_{shape['hidden']}.json")),
                os.path.join(folder, f"weights_{shape['hidden']}.safetensors"),
            )
        self.folder = folder
        self.names = CASES[stage] | options.more_cases
        peers = [peer for peer in self.names if peer not in options.left_out]
        chosen = set(options.cases or peers) - {CONTROL} | ({CONTROL} if options.control else set())
        peers = [peer for peer in peers if peer in chosen]
        self.figures = {peer: {"step_ms": []} for peer in peers}

    def write_config(self, shape, path, **more):
        with open(path, "w", encoding="utf-8") as file:
            json.dump(config_of(self.stage, shape, self.options) | more, file)
        return path

    def start(self, peer, shape, steps=None, launched=False):
        config, weights = self.files[shape["hidden"]]
        return Run(self.options, peer, config, shape, weights, steps, launched)

    def time_steps(self):
        runs = {peer: self.start(peer, self.shape) for peer in self.figures}
        losses = {peer: run.turn(self.options.warm_up)["losses"] for peer, run in runs.items()}
        self.compare(losses)  # before the long part
        for _ in range(self.options.turns):
            for peer, run in runs.items():
                turn = run.turn(self.options.steps)
                self.figures[peer]["step_ms"].append(statistics.median(turn["step_ms"]))
                losses[peer] += turn["losses"]
        self.compare(losses)
        for run in runs.values():
            run.end()

    def compare(self, losses):
        """Compares the losses of all steps so far with those of the first case."""
        reference = next(iter(losses.values()))
        early, tolerance = self.options.warm_up, TOLERANCES[self.options.precision]
        later = LATER_ON_GPUS if (self.options.device, self.options.precision) == ("cuda", "bf16") else tolerance
        for peer, found in losses.items():
            self.figures[peer]["losses"] = found
            if peer in ALONE:
                found = found[:1]  # the mean over ranks of the loss of the same weights on the same batches
            name = f"{peer} at stage {self.stage}"
            self.figures[peer]["loss_difference"] = max(check_losses(name, found[:early], reference[:early], tolerance),
                                                        check_losses(name, found[early:], reference[early:], later, early))

    def watch_memory(self):
        for peer, figure in self.figures.items():
            before = gpu_memory() if self.options.device == "cuda" else None
            run = self.start(peer, self.shape, self.options.warm_up)
            memory = Memory(run, before)
            run.listen("steps")
            figure["peak_memory"] = memory.stop()
            run.end()

    def time_start_up(self):
        for peer, figure in self.figures.items():
            seconds = []
            for _ in range(4):
                run = self.start(peer, START_UP, 1, launched=True)
                run.listen("first step")
                seconds.append(time.perf_counter() - run.begin)
                run.end()
            figure["first_step_s"] = statistics.median(seconds[1:])

    def break_down(self):
        """Runs ZeroRun's warm-up and then one interval of steps, of which it says where their time went."""
        interval = max(self.options.warm_up, self.options.steps)
        path = self.write_config(self.shape, os.path.join(self.folder, f"breakdown_{self.stage}.json"),
                                 wall_clock_breakdown=True, steps_per_print=interval)
        run = Run(self.options, "zerorun", path, self.shape, self.files[self.shape["hidden"]][1], 2 * interval)
        run.listen("steps")
        run.end()
        found = re.findall(r"step \d+: (over \d+ steps, ms each.*)", run.messages())
        self.breakdown = found[-1] if found else "ZeroRun has printed no breakdown"

    def show(self):
        ours = self.figures["zerorun"]["step_ms"]
        for peer, figure in self.figures.items():
            times = figure["step_ms"]
            ratio = statistics.median(mine / theirs for mine, theirs in zip(ours, times))
            row = (f"{self.stage:5} {self.names[peer]:24} {statistics.median(times):8.1f} {min(times):7.1f}"
                   f" {max(times):7.1f} {ratio:12.3f} {figure['loss_difference']:12.1e}")
            if "peak_memory" in figure:
                row += f" {figure['peak_memory'] / 1e6:14.1f} {figure['first_step_s']:14.2f}"
            print(row, flush=True)
        if self.breakdown:
            print(f"{self.stage:5} ZeroRun, {self.breakdown}", flush=True)


def processor():
    with open("/proc/cpuinfo", encoding="utf-8") as text:
        names = [line.split(":", 1)[1].strip() for line in text if line.startswith("model name")]
    return f"{len(names)} x {names[0]}" if names else platform.processor()


def cards():
    if shutil.which("nvidia-smi") is None:
        return "GPUs"
    names = subprocess.run(["nvidia-smi", "--query-gpu=name", "--format=csv,noheader"], capture_output=True, text=True,
                           check=True).stdout.splitlines()
    return f"{len(names)} x {names[0]}"


def left_out(options):
    """The cases that cannot run here, with the reasons."""
    reasons = {}
    if options.nvme:
        reasons |= {peer: "keeps no optimizer states in files" for stage in CASES.values() for peer in stage
                    if peer not in WITH_NVME}
    if options.device == "cuda" or options.precision != "fp32":
        reasons["deepspeed"] = "it is compared on the CPU in fp32 only"
    elif importlib.util.find_spec("deepspeed") is None:
        reasons["deepspeed"] = "it is not installed"
    if importlib.util.find_spec("zerorun") is None:
        reasons["zerorun_python"] = "the package zerorun is not installed"
    return reasons


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--bin", required=True, help="build/bin")
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu", help="cuda: one GPU for each rank")
    parser.add_argument("--precision", choices=tuple(DTYPES), default="fp32", help="bf16: with fp32 master weights")
    parser.add_argument("--model", choices=tuple(SHAPES), default="small", help="124M: the smallest GPT-2")
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--stages", type=int, nargs="+", default=list(CASES), choices=list(CASES))
    parser.add_argument("--cases", nargs="+", metavar="NAME", help="only these, zerorun among them; default: all")
    parser.add_argument("--control", action="store_true", help="also the case zerorun_again, which is zerorun a second time")
    parser.add_argument("--turns", type=int, default=9)
    parser.add_argument("--steps", type=int, default=3, help="steps of a turn")
    parser.add_argument("--warm-up", type=int, default=4)
    parser.add_argument("--only-steps", action="store_true", help="measure neither memory nor the time to the first step")
    parser.add_argument("--tiny", action="store_true",
                        help="--model tiny --only-steps, also beside plain loops without communication")
    parser.add_argument("--nvme", metavar="FOLDER", help="optimizer states in files of FOLDER: needs --stages 3, libaio-dev")
    parser.add_argument("--hosts", nargs="+", type=shlex.split, default=[()], metavar="WORDS",
                        help="for each host the words in front of a command that run it there; with --address; --only-steps")
    parser.add_argument("--address", help="of the first host, where ranks meet")
    parser.add_argument("--json", help="file for all figures")
    options = parser.parse_args()
    if options.tiny:
        options.model, options.only_steps = "tiny", True
    options.only_steps = options.only_steps or options.address is not None
    options.more_cases = (ALONE if options.tiny or options.address else {}) | (BETWEEN_HOSTS if options.address else {})
    names = {name for stage in CASES.values() for name in stage} | set(options.more_cases)
    if options.cases and ("zerorun" not in options.cases or not names >= set(options.cases)):
        parser.error(f"--cases: expected zerorun and some of {', '.join(sorted(names))}")

    if options.device == "cuda" and not options.only_steps and shutil.which("nvidia-smi") is None:
        parser.error("there is no nvidia-smi, which says how much memory GPUs use: give --only-steps")
    options.left_out = left_out(options)
    hardware = cards() if options.device == "cuda" else processor()
    print(f"{hardware}; torch {torch.__version__}"
          + ("" if "deepspeed" in options.left_out else f", DeepSpeed {importlib.metadata.version('deepspeed')}"))
    print(f"{options.ranks} ranks of 1 thread, {options.model} model, {options.precision}; medians of {options.turns} turns of "
          f"{options.steps} steps; losses of {options.warm_up + options.turns * options.steps} steps beside the first case's")
    for peer, reason in options.left_out.items():
        print(f"without {peer}: {reason}")
    memory = "peak MB of GPU" if options.device == "cuda" else "peak PSS MB"
    print("stage case                      step ms     min     max  ZeroRun's / its  losses"
          + ("" if options.only_steps else f"    {memory}   first step s"))
    stages = []
    with tempfile.TemporaryDirectory() as folder:
        for shape in {shape["hidden"]: shape for shape in (SHAPES[options.model], START_UP)}.values():
            weights = os.path.join(folder, f"weights_{shape['hidden']}.safetensors")
            write_weights(make_model(shape, DTYPES[options.precision]), weights)
        for number in options.stages:
            stage = Stage(options, number, folder)
            stage.time_steps()
            if not options.only_steps:
                stage.watch_memory()
                stage.time_start_up()
            if not options.address:
                stage.break_down()
            stage.show()
            stages.append(stage)
    print(f"load average in the end: {os.getloadavg()[0]:.1f}")
    if options.json:
        with open(options.json, "w", encoding="utf-8") as file:
            json.dump({stage.stage: {"cases": stage.figures, "breakdown": stage.breakdown} for stage in stages}, file,
                      indent=2)


if __name__ == "__main__":
    main()
