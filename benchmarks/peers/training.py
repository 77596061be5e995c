"""Times training steps of ZeroRun and its peers in turns, on the CPU, one thread per rank.

benchmarks/peers/training runs this in the environment with the peers. The processes of all cases of a stage exist at
the same time and take turns of a few steps, so that noise of the machine affects all of them. The time of a step is
that of its slowest rank; the printed figures are medians. All cases train the same model from the same weights on the
same batches with the same settings, and their losses are compared. Memory is measured in separate runs of each case,
and so is the time from the command to the end of a tiny model's first step.
"""

import argparse
import glob
import json
import os
import platform
import socket
import statistics
import subprocess
import sys
import tempfile
import threading
import time

import deepspeed
import torch
from gpt2 import Gpt2, write_weights

HERE = os.path.dirname(os.path.abspath(__file__))
GPT2 = {"layers": 6, "hidden": 512, "heads": 8, "vocab": 8192, "seq": 128, "micro_batch": 4}
TINY = {"layers": 2, "hidden": 64, "heads": 4, "vocab": 256, "seq": 32, "micro_batch": 4}
# The cases of each stage: the value of --peer for training_rank.py, and the name to print.
OURS = {"zerorun": "ZeroRun", "zerorun_again": "ZeroRun again", "zerorun_python": "ZeroRun from Python"}
CASES = {
    0: OURS | {"ddp": "DDP", "deepspeed": "DeepSpeed"},
    1: OURS | {"zero_redundancy": "ZeroRedundancyOptimizer", "ddp": "DDP", "deepspeed": "DeepSpeed"},
    2: OURS | {"ddp": "DDP", "deepspeed": "DeepSpeed"},
    3: OURS | {"fsdp2": "FSDP2", "fsdp2_kept": "FSDP2, not resharded", "deepspeed": "DeepSpeed"},
}
# Runs the same program as "zerorun" a second time. The difference between the two shows the noise of this run.
CONTROL = "zerorun_again"


# The cases that can keep optimizer states in files.
WITH_NVME = (*OURS, "deepspeed")


def config_of(stage, shape, nvme):
    zero = {"stage": stage, "overlap_comm": stage > 0}
    if nvme:
        zero["offload_optimizer"] = {"device": "nvme", "nvme_path": nvme, "pin_memory": False}
        zero["offload_optimizer"] |= {"pipeline_read": True, "pipeline_write": True}
    return {
        "train_micro_batch_size_per_gpu": shape["micro_batch"],
        "optimizer": {"type": "AdamW", "params": {"lr": 1e-4, "weight_decay": 0.01}},
        "gradient_clipping": 1.0,
        "zero_optimization": zero,
        "steps_per_print": 1000000000,
    }


def free_port():
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return listener.getsockname()[1]


def pss_of(pid):
    """Proportional set size in bytes: each process is charged its share of a shared page."""
    try:
        with open(f"/proc/{pid}/smaps_rollup", encoding="ascii") as lines:
            return next(int(line.split()[1]) * 1024 for line in lines if line.startswith("Pss:"))
    except (OSError, StopIteration):
        return 0


class Run:
    """The processes of one case's ranks, from their start to their end."""

    def __init__(self, options, peer, config, shape, weights, steps=None, launched=False):
        self.peer, self.port, self.begin = peer, free_port(), time.perf_counter()
        command = [os.path.join(options.bin, "bench_training"), "--deepspeed", config, "--weights", weights]
        for key, value in shape.items():
            command += ["--" + key.replace("_", "-"), str(value)]
        if peer not in ("zerorun", CONTROL):
            command = [sys.executable, os.path.join(HERE, "training_rank.py"), "--peer", peer, "--config", config]
            command += ["--shape", json.dumps(shape)]
        command += ["--steps", str(steps)] if steps else ["--on-demand"]
        environments = [dict(os.environ, OMP_NUM_THREADS="1", ZERORUN_DEVICE="cpu") for _ in range(options.ranks)]
        for rank, environment in enumerate(environments):
            environment.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(self.port), RANK=str(rank), LOCAL_RANK=str(rank))
            environment.update({name: str(options.ranks) for name in ("WORLD_SIZE", "LOCAL_WORLD_SIZE", "LOCAL_SIZE")})
        if peer in OURS and launched:
            command = [os.path.join(options.bin, "zerorun"), "--num_gpus", str(options.ranks), *command]
            environments = [dict(os.environ, OMP_NUM_THREADS="1", ZERORUN_DEVICE="cpu")]
        self.errors = tempfile.TemporaryFile("w+")
        self.ranks = [
            subprocess.Popen(
                command,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE if rank == 0 else self.errors,
                stderr=self.errors,
                text=True,
                env=environment,
            )
            for rank, environment in enumerate(environments)
        ]

    def listen(self, event):
        """Returns the next event of this name, and skips other output."""
        for line in self.ranks[0].stdout:
            if line.startswith('{"event"') and (found := json.loads(line))["event"] == event:
                return found
        self.errors.seek(0)
        sys.exit(f"{self.peer} has failed:\n{self.errors.read()[-4000:]}")

    def turn(self, steps):
        for rank in self.ranks:
            rank.stdin.write(f"{steps}\n")
            rank.stdin.flush()
        return self.listen("steps")

    def end(self):
        for rank in self.ranks:
            rank.stdin.close()
        self.ranks[0].stdout.read()
        for rank in self.ranks:
            rank.wait()
        for path in glob.glob(f"/dev/shm/deepspeed_allreduce_buffer_*_{self.port}_*"):
            os.unlink(path)  # DeepSpeed does not remove these 66 MiB per rank


class Memory(threading.Thread):
    """Samples the mean memory of a run's ranks. stop() returns the largest sample in bytes."""

    def __init__(self, run):
        super().__init__(daemon=True)
        self.pids, self.peak, self.over = [rank.pid for rank in run.ranks], 0, threading.Event()
        self.start()

    def run(self):
        while not self.over.wait(0.02):
            self.peak = max(self.peak, sum(map(pss_of, self.pids)) / len(self.pids))

    def stop(self):
        self.over.set()
        self.join()
        return self.peak


def check_losses(name, losses, reference):
    for step, (mine, theirs) in enumerate(zip(losses, reference)):
        if abs(mine - theirs) > 1e-4 * abs(theirs):
            sys.exit(f"{name} trains something else: its step {step} has loss {mine}, the first case's {theirs}")


class Stage:
    def __init__(self, options, stage, folder):
        self.options, self.stage = options, stage
        self.files = {}
        for shape in (GPT2, TINY):
            config = os.path.join(folder, f"stage_{stage}_{shape['hidden']}.json")
            with open(config, "w", encoding="utf-8") as file:
                json.dump(config_of(stage, shape, options.nvme), file)
            self.files[shape["hidden"]] = (config, os.path.join(folder, f"weights_{shape['hidden']}.safetensors"))
        peers = [peer for peer in CASES[stage] if not options.nvme or peer in WITH_NVME]
        chosen = set(options.cases or peers) - {CONTROL} | ({CONTROL} if options.control else set())
        peers = [peer for peer in peers if peer in chosen]
        self.figures = {peer: {"step_ms": []} for peer in peers}

    def start(self, peer, shape, steps=None, launched=False):
        config, weights = self.files[shape["hidden"]]
        return Run(self.options, peer, config, shape, weights, steps, launched)

    def time_steps(self):
        runs = {peer: self.start(peer, GPT2) for peer in self.figures}
        reference = None
        for peer, run in runs.items():
            losses = run.turn(self.options.warm_up)["losses"]
            reference = reference or losses
            check_losses(f"{peer} at stage {self.stage}", losses, reference)
        for _ in range(self.options.turns):
            for peer, run in runs.items():
                times = run.turn(self.options.steps)["step_ms"]
                self.figures[peer]["step_ms"].append(statistics.median(times))
        for run in runs.values():
            run.end()

    def watch_memory(self):
        for peer, figure in self.figures.items():
            run = self.start(peer, GPT2, self.options.warm_up)
            memory = Memory(run)
            run.listen("steps")
            figure["peak_pss"] = memory.stop()
            run.end()

    def time_start_up(self):
        for peer, figure in self.figures.items():
            seconds = []
            for _ in range(4):
                run = self.start(peer, TINY, 1, launched=True)
                run.listen("first step")
                seconds.append(time.perf_counter() - run.begin)
                run.end()
            figure["first_step_s"] = statistics.median(seconds[1:])

    def show(self):
        ours = self.figures["zerorun"]["step_ms"]
        for peer, figure in self.figures.items():
            times = figure["step_ms"]
            ratio = statistics.median(mine / theirs for mine, theirs in zip(ours, times))
            print(
                f"{self.stage:5} {CASES[self.stage][peer]:24} {statistics.median(times):8.1f} {min(times):7.1f}"
                f" {max(times):7.1f} {ratio:12.3f} {figure['peak_pss'] / 1e6:14.1f} {figure['first_step_s']:14.2f}",
                flush=True,
            )


def processor():
    with open("/proc/cpuinfo", encoding="utf-8") as text:
        names = [line.split(":", 1)[1].strip() for line in text if line.startswith("model name")]
    return f"{len(names)} x {names[0]}" if names else platform.processor()


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--bin", required=True, help="build/bin")
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--stages", type=int, nargs="+", default=list(CASES), choices=list(CASES))
    parser.add_argument("--cases", nargs="+", metavar="NAME", help="only these, zerorun among them; default: all")
    parser.add_argument("--control", action="store_true", help="also the case zerorun_again, which is zerorun a second time")
    parser.add_argument("--turns", type=int, default=9)
    parser.add_argument("--steps", type=int, default=3, help="steps of a turn")
    parser.add_argument("--warm-up", type=int, default=4)
    parser.add_argument("--nvme", metavar="FOLDER", help="optimizer states in files of FOLDER: needs --stages 3, libaio-dev")
    parser.add_argument("--json", help="file for all figures")
    options = parser.parse_args()
    names = {name for stage in CASES.values() for name in stage}
    if options.cases and ("zerorun" not in options.cases or not names >= set(options.cases)):
        parser.error(f"--cases: expected zerorun and some of {', '.join(sorted(names))}")

    print(f"{processor()}; torch {torch.__version__}, DeepSpeed {deepspeed.__version__}")
    print(f"{options.ranks} ranks of 1 thread; medians of {options.turns} turns of {options.steps} steps")
    print("stage case                      step ms     min     max  ZeroRun's / its   peak PSS MB   first step s")
    stages = []
    with tempfile.TemporaryDirectory() as folder:
        for shape in (GPT2, TINY):
            write_weights(Gpt2(shape), os.path.join(folder, f"weights_{shape['hidden']}.safetensors"))
        for number in options.stages:
            stage = Stage(options, number, folder)
            stage.time_steps()
            stage.watch_memory()
            stage.time_start_up()
            stage.show()
            stages.append(stage)
    print(f"load average in the end: {os.getloadavg()[0]:.1f}")
    if options.json:
        with open(options.json, "w", encoding="utf-8") as file:
            json.dump({stage.stage: stage.figures for stage in stages}, file, indent=2)


if __name__ == "__main__":
    main()
