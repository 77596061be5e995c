"""Training steps of ZeroRun and of its peers in turns, two ranks on the CPU, one thread each.

benchmarks/peers/training runs this in an environment that has the peers. In a turn each case is started anew and
trains for some steps, of which the first few only warm up; the time of a step is that of its slowest rank. What is
printed is the median of the medians of the turns. All cases train the same model from the same weights on the same
batches with the same settings; their losses are compared.
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

import torch
from gpt2 import Gpt2, write_weights

HERE = os.path.dirname(os.path.abspath(__file__))
GPT2 = {"layers": 6, "hidden": 512, "heads": 8, "vocab": 8192, "seq": 128, "micro_batch": 4}
TINY = {"layers": 2, "hidden": 64, "heads": 4, "vocab": 256, "seq": 32, "micro_batch": 4}
CASES = {
    "ZeroRun 0": ("zerorun", 0),
    "DDP": ("ddp", 0),
    "DeepSpeed 0": ("deepspeed", 0),
    "ZeroRun 1": ("zerorun", 1),
    "ZeroRedundancyOptimizer": ("zero_redundancy", 1),
    "DeepSpeed 1": ("deepspeed", 1),
    "ZeroRun 2": ("zerorun", 2),
    "DeepSpeed 2": ("deepspeed", 2),
    "ZeroRun 3": ("zerorun", 3),
    "FSDP2": ("fsdp2", 3),
    "FSDP2, not resharded": ("fsdp2_kept", 3),
    "DeepSpeed 3": ("deepspeed", 3),
}


def config_of(stage, shape):
    return {
        "train_micro_batch_size_per_gpu": shape["micro_batch"],
        "optimizer": {"type": "AdamW", "params": {"lr": 1e-4, "weight_decay": 0.01}},
        "gradient_clipping": 1.0,
        "zero_optimization": {"stage": stage, "overlap_comm": stage > 0},
        "steps_per_print": 1000000000,
    }


def free_port():
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return listener.getsockname()[1]


def pss_of(pid):
    """Proportional set size in bytes: shared pages count by their share."""
    try:
        with open(f"/proc/{pid}/smaps_rollup", encoding="ascii") as lines:
            return next(int(line.split()[1]) * 1024 for line in lines if line.startswith("Pss:"))
    except (OSError, StopIteration):
        return 0


def descendants(pid):
    try:
        with open(f"/proc/{pid}/task/{pid}/children", encoding="ascii") as text:
            children = [int(word) for word in text.read().split()]
    except OSError:
        return []
    return children + [below for child in children for below in descendants(child)]


class Memory(threading.Thread):
    """Watches the ranks of a case: the largest sum of their memory, by rank."""

    def __init__(self, roots, ranks, program):
        super().__init__(daemon=True)
        self.roots, self.ranks, self.program = roots, ranks, program
        self.peak = 0
        self.over = threading.Event()

    def is_rank(self, pid):
        try:
            with open(f"/proc/{pid}/cmdline", "rb") as text:
                return self.program.encode() in text.read().split(b"\0")[0 if self.program != "training_rank.py" else 1]
        except (OSError, IndexError):
            return False

    def run(self):
        while not self.over.wait(0.02):
            pids = {pid for root in self.roots for pid in [root, *descendants(root)]}
            total = sum(pss_of(pid) for pid in pids if self.is_rank(pid))
            self.peak = max(self.peak, total / self.ranks)


class Case:
    def __init__(self, options, name, folder, shape, weights):
        self.options, self.name, self.shape, self.weights = options, name, shape, weights
        self.peer, stage = CASES[name]
        self.config = os.path.join(folder, f"stage_{stage}_{shape['hidden']}.json")
        with open(self.config, "w", encoding="utf-8") as file:
            json.dump(config_of(stage, shape), file)

    def start(self, steps):
        environment = dict(os.environ, OMP_NUM_THREADS="1")
        if self.peer == "zerorun":
            command = [os.path.join(self.options.bin, "zerorun"), "--num_gpus", str(self.options.ranks)]
            command += ["--device", "cpu", os.path.join(self.options.bin, "bench_training")]
            command += ["--deepspeed", self.config, "--weights", self.weights, "--steps", str(steps)]
            for key, value in self.shape.items():
                command += ["--" + key.replace("_", "-"), str(value)]
            return [subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment)], None
        port = free_port()
        environment.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port))
        environment.update(WORLD_SIZE=str(self.options.ranks), LOCAL_SIZE=str(self.options.ranks))
        command = [sys.executable, os.path.join(HERE, "training_rank.py"), "--peer", self.peer, "--config", self.config]
        command += ["--shape", json.dumps(self.shape), "--steps", str(steps)]
        processes = []
        for rank in range(self.options.ranks):
            own = dict(environment, RANK=str(rank), LOCAL_RANK=str(rank))
            processes.append(
                subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=own)
            )
        return processes, port

    def run(self, steps, memory=False):
        """The last event of rank 0, with the seconds from the start to the end of the first step."""
        begin = time.perf_counter()
        processes, port = self.start(steps)
        errors = [[] for _ in processes]
        readers = [
            threading.Thread(target=lambda p=p, e=e: e.append(p.stderr.read()), daemon=True)
            for p, e in zip(processes, errors)
        ]
        watch = None
        for reader in readers:
            reader.start()
        if memory:
            watch = Memory(
                [process.pid for process in processes],
                self.options.ranks,
                "bench_training" if self.peer == "zerorun" else "training_rank.py",
            )
            watch.start()
        result = {}
        for line in processes[0].stdout:
            if not line.startswith('{"event"'):
                continue
            event = json.loads(line)
            if event["event"] == "first step":
                result["first_step_s"] = time.perf_counter() - begin
            else:
                result.update(event)
        codes = [process.wait() for process in processes]
        if watch:
            watch.over.set()
            watch.join()
            result["peak_pss"] = watch.peak
        if port:  # DeepSpeed leaves a file of 66 MiB a rank behind
            for path in glob.glob(f"/dev/shm/deepspeed_allreduce_buffer_*_{port}_*"):
                os.unlink(path)
        if any(codes) or "step_ms" not in result:
            sys.exit(f"{self.name} failed ({codes}):\n" + "\n".join(text for error in errors for text in error)[-4000:])
        return result


def processor():
    with open("/proc/cpuinfo", encoding="utf-8") as text:
        names = [line.split(":", 1)[1].strip() for line in text if line.startswith("model name")]
    return f"{len(names)} x {names[0]}" if names else platform.processor()


def check_losses(name, losses, reference):
    for step, (mine, theirs) in enumerate(zip(losses, reference)):
        if abs(mine - theirs) > 1e-4 * abs(theirs):
            sys.exit(f"{name} trains something else: step {step} has loss {mine}, the first case's has {theirs}")


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--bin", required=True, help="build/bin")
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--turns", type=int, default=5)
    parser.add_argument("--steps", type=int, default=12, help="timed steps of a turn")
    parser.add_argument("--warm-up", type=int, default=4)
    parser.add_argument("--only", nargs="+", default=list(CASES), choices=list(CASES), metavar="CASE")
    parser.add_argument("--json", help="file for all figures")
    options = parser.parse_args()

    with tempfile.TemporaryDirectory() as folder:
        cases, tiny = [], []
        for shape, made in ((GPT2, cases), (TINY, tiny)):
            weights = os.path.join(folder, f"weights_{shape['hidden']}.safetensors")
            write_weights(Gpt2(shape), weights)
            made += [Case(options, name, folder, shape, weights) for name in options.only]
        load_before = os.getloadavg()[0]
        figures = {name: {"step_ms": [], "first_step_s": []} for name in options.only}
        reference = None
        for turn in range(options.turns):
            for case in cases:
                result = case.run(options.warm_up + options.steps)
                reference = reference or result["losses"]
                check_losses(case.name, result["losses"], reference)
                figures[case.name]["step_ms"].append(statistics.median(result["step_ms"][options.warm_up :]))
                print(f"turn {turn} {case.name}: {figures[case.name]['step_ms'][-1]:.1f} ms", file=sys.stderr)
        for case in cases:
            figures[case.name]["peak_pss"] = case.run(options.warm_up, memory=True)["peak_pss"]
        for _ in range(3):
            for case in tiny:
                figures[case.name]["first_step_s"].append(case.run(1)["first_step_s"])

    import deepspeed

    print(f"{processor()}; torch {torch.__version__}, DeepSpeed {deepspeed.__version__}")
    print(f"{options.ranks} ranks, 1 thread each; {options.turns} turns of {options.steps} steps;", end=" ")
    print(f"load average {load_before:.1f} before, {os.getloadavg()[0]:.1f} after")
    print("case                       step ms     min     max   ZeroRun's ratio   peak PSS MB   first step s (tiny)")
    for name in options.only:
        figure = figures[name]
        median = statistics.median(figure["step_ms"])
        ours = figures.get(f"ZeroRun {CASES[name][1]}")
        ratio = statistics.median(a / b for a, b in zip(ours["step_ms"], figure["step_ms"])) if ours else float("nan")
        print(
            f"{name:25} {median:8.1f} {min(figure['step_ms']):7.1f} {max(figure['step_ms']):7.1f} {ratio:15.3f}"
            f" {figure['peak_pss'] / 1e6:15.1f} {statistics.median(figure['first_step_s']):18.2f}"
        )
    if options.json:
        with open(options.json, "w", encoding="utf-8") as file:
            json.dump(figures, file, indent=2)


if __name__ == "__main__":
    main()
