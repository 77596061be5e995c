"""Times steps of DeepSpeedCPUAdam, torch's fused AdamW and bench_optimizer in turns, in bytes per second.

benchmarks/peers/optimizer runs this in the environment with the peers. Within a turn every case runs a few steps, and
the median counts as the result of the turn. The printed figures are medians over turns. The bytes are those that the
optimizer's formula must read or write: 28 bytes per parameter for AdamW in fp32.
"""

import argparse
import json
import os
import platform
import statistics
import subprocess
import time

import deepspeed
import torch
from deepspeed.ops.adam import DeepSpeedCPUAdam

OURS = ["AdamW fp32", "AdamW bf16", "AdamW fp16", "STREAM triad"]
REFERENCE = "DeepSpeedCPUAdam fp32"


def parameter(numel, dtype):
    result = torch.full((numel,), 0.5, dtype=dtype, requires_grad=True)
    result.grad = torch.full((numel,), 0.1, dtype=dtype)
    return result


def make_peers(numel):
    """Returns for each peer its name, the bytes that a step moves per parameter, and the step to time."""
    settings = {"lr": 1e-4, "weight_decay": 0.01}
    fp32 = DeepSpeedCPUAdam([parameter(numel, torch.float32)], **settings)
    bf16 = DeepSpeedCPUAdam([parameter(numel, torch.bfloat16)], **settings)
    fused = torch.optim.AdamW([parameter(numel, torch.float32)], fused=True, **settings)
    return [
        (REFERENCE, 4 + 2 * 12, fp32.step),
        ("DeepSpeedCPUAdam bf16, no master", 2 + 2 * (2 + 8), bf16.step),
        ("torch AdamW(fused=True) fp32", 4 + 2 * 12, fused.step),
    ]


def seconds_of(step, steps):
    times = []
    for _ in range(steps):
        begin = time.perf_counter()
        step()
        times.append(time.perf_counter() - begin)
    return statistics.median(times)


def run_ours(options, threads):
    """Returns the GB/s of bench_optimizer's cases, by name."""
    command = [options.bench, "--json", "--numel", str(options.numel), "--rounds", str(options.steps)]
    command += ["--threads", str(threads), "--no-other-simds", "--only", *OURS]
    result = json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout)
    return {
        case["name"] if case["name"] == "STREAM triad" else f"ZeroRun {case['name']}": case["gb_per_s"]
        for case in result["cases"]
    }


def processor():
    with open("/proc/cpuinfo", encoding="utf-8") as text:
        names = [line.split(":", 1)[1].strip() for line in text if line.startswith("model name")]
    return f"{len(names)} x {names[0]}" if names else platform.processor()


def print_results(rates, threads):
    reference = statistics.median(rates[threads][REFERENCE])
    for name, values in rates[threads].items():
        rate = statistics.median(values)
        print(f"{threads:7} {name:34} {rate:6.1f} {min(values):6.1f} {max(values):6.1f} {rate / reference:6.2f}")


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--bench", required=True, help="bench_optimizer")
    parser.add_argument("--numel", type=int, default=1 << 25)
    parser.add_argument("--turns", type=int, default=7)
    parser.add_argument("--steps", type=int, default=5, help="steps of each case in a turn")
    parser.add_argument("--threads", type=int, nargs="+", default=[1, 2])
    options = parser.parse_args()

    torch.set_num_threads(max(options.threads))
    peers = make_peers(options.numel)
    rates = {threads: {} for threads in options.threads}
    load_before = os.getloadavg()[0]
    for turn in range(-1, options.turns):  # turn -1 only warms up
        for threads in options.threads:
            torch.set_num_threads(threads)
            found = {
                name: size * options.numel / seconds_of(step, options.steps) / 1e9 for name, size, step in peers
            }
            found.update(run_ours(options, threads))
            for name, rate in found.items():
                if turn >= 0:
                    rates[threads].setdefault(name, []).append(rate)
    print(f"{processor()}; DeepSpeed {deepspeed.__version__}, torch {torch.__version__}")
    print(f"{options.numel} parameters, {options.turns} turns of {options.steps} steps; GB/s;", end=" ")
    print(f"load average {load_before:.1f} before, {os.getloadavg()[0]:.1f} after")
    print("threads case                               median    min    max  of DeepSpeedCPUAdam fp32")
    for threads in options.threads:
        print_results(rates, threads)


if __name__ == "__main__":
    main()
