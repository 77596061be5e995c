"""Writes run logs as docs/monitoring.md describes them, without training."""

import json
import math
import pathlib
import random

HOSTILE = "</script><script>window.broken = 1</script><img src=x onerror=\"window.broken = 1\">&amp;'\u2028"


def word(value):
    """JSON has no numbers for what is not finite."""
    return value if math.isfinite(value) else str(value)


def record(stage=2, ranks=2, name="h.0.attn.weight", precision="fp16", **others):
    settings = [("train_micro_batch_size_per_gpu", 8, "line 2"), ("gradient_accumulation_steps", 1, "default"),
                ("optimizer.type", "AdamW", "line 5"), ("optimizer.params.lr", 0.002, "line 6: auto, from the program's arguments"),
                ("zero_optimization.stage", stage, "line 9"), ("zero_optimization.overlap_comm", True, "line 9"),
                ("zero_optimization.reduce_bucket_size", 500000000, "default"), ("gradient_clipping", 1.0, "line 12")]
    return {
        "format": 1, "started": "2026-03-01T12:00:00Z", "libtorch": "2.15.0", "device": "cpu", "processor": "AVX2",
        "transport": "shared memory", "hosts": ["worker-0", "worker-1"], "world_size": ranks,
        "mesh": {"data": ranks, "tensor": 1, "pipeline": 1}, "micro_batch": 8, "accumulation": 1, "sums_micro_steps": True,
        "precision": precision, "master": "fp32", "optimizer": "AdamW", "seed": 42, "hashes": False,
        "settings": [{"key": key, "value": value, "from": origin} for key, value, origin in settings],
        "parameters": [{"name": name, "shape": [1000, 400], "trained": True}, {"name": "scale", "shape": [], "trained": False}],
        "states": {"parameters": 400000, "value": 2, "gradient": 4, "master": 4, "moments": 8}, **others}


def step(number, loss, norm=None, lr=0.002, skipped=False, scale=None, shift=0, seconds=0.5):
    line = {
        "step": number, "loss": None if loss is None else word(loss), "losses": [] if loss is None else [word(loss), word(loss)],
        "grad_norm": word(math.inf if skipped else norm if norm is not None else 1 + math.sin(number / 5) / 3), "lr": lr,
        "skipped": skipped, "samples": 16 * number + shift, "seconds": seconds,
        "bytes": {"parameters": 400000, "gradients": 800000, "master": 800000, "moments": 1600000, "buckets": 500000 + 1000 * (number % 7),
                  "in_files": 10 ** 9},
        "elements": {"all_gather": 200128.0, "reduce_scatter": 200128.0, "all_reduce": 22.0}}
    return line if scale is None else {**line, "loss_scale": scale}


def event(number, what, text=""):
    return {"step": number, "event": what, "time": "2026-03-01T12:00:00Z", "text": text}


def write(folder, run, lines):
    folder = pathlib.Path(folder)
    folder.mkdir(parents=True)
    (folder / "run.json").write_text(json.dumps(run), encoding="utf-8")
    (folder / "steps.jsonl").write_text("".join(json.dumps(line, separators=(",", ":")) + "\n" for line in lines), encoding="utf-8")
    return folder


def timeline(archive, ranks=2, number=60, text="wait for ranks"):
    """What the ranks of a run leave beside the archive of their timeline. Rank r's clock is 1,000 r seconds late, and it begins r ms later."""
    folder = pathlib.Path(str(archive) + ".ranks")
    folder.mkdir(parents=True)
    for rank in range(ranks):
        spans = [["engine", 0, "forward", 0, 30e6], ["engine", 0, "backward", 30e6, 80e6], ["engine", 0, "step", 80e6, 100e6],
                 ["engine", 1, "norm", 85e6, 90e6], ["thread 1, python", 0, text, 40e6, 50e6], ["reduce_scatter", 0, "reduce_scatter", 35e6, 50e6],
                 ["reduce_scatter", 1, "reduce_scatter", 45e6, 70e6]]
        begin = 5_000_000_000_000 + rank * (10 ** 6 - 10 ** 12)
        facts = {"rank": rank, "world_size": ranks, "machine": f"worker-{rank}", "clock_offset_ns": rank * 10 ** 12, "round_trip_ns": 1,
                 "step": {"number": number, "begin_ns": begin, "end_ns": begin + 100_000_000, "spans": [[*span[:3], int(span[3]), int(span[4])] for span in spans]}}
        (folder / f"rank{rank}.json").write_text(json.dumps(facts), encoding="utf-8")
    return str(archive)


def loss_of(number, seed=0):
    return 2 + 6 * math.exp(-number / 15) + 0.1 * random.Random(seed + number).random()


def troubled(folder, name="h.0.attn.weight", text="rank 1 killed by signal 9 (SIGKILL): out of memory"):
    """60 steps under fp16: skipped ones, a loss that is NaN, a norm that is infinite, a failure and another start."""
    scale, lines = 65536.0, [event(0, "began", "2 ranks on worker-0, worker-1")]
    for number in range(1, 61):
        skipped = number in (1, 2, 41)
        loss, norm = math.nan if number == 20 else loss_of(number), math.inf if number == 30 else None
        seconds = 0.4 + 0.1 * math.sin(number)
        lines.append({**step(number, loss, norm, 0.002 * min(1, number / 10), skipped, scale, seconds=seconds), "tokens": 8192})
        scale /= 2 if skipped else 1
        if number == 40:
            lines += [event(40, "failed", text), event(0, "began", "2 ranks on worker-0, worker-1")]
    return write(folder, record(name=name), [*lines, event(60, "ended")])


def plain(folder, steps=60, parts_at=None, **others):
    """A run without trouble, whose losses are others from the step `parts_at` on."""
    lines = [event(0, "began", "2 ranks on worker-0")]
    for number in range(1, steps + 1):
        more = 0.3 if parts_at is not None and number >= parts_at else 0
        lines.append(step(number, loss_of(number) + more))
    return write(folder, record(precision="fp32", **others), lines)
