#!/usr/bin/env python3
"""Trains a small transformer with the Python package on one rank, and compares its losses with a plain torch loop.

    python_on_gpu.py [--device cuda|cpu] [--only KIND,...] [--compile-seconds S]

Each kind of model, in fp32 and bf16: stage 0 has the losses of the loop up to a tolerance, and stage 3 has the losses and
weights of stage 0 to the bit. Kinds: `plain`; `checkpoint` and `reentrant`, whose blocks torch.utils.checkpoint computes
again in backward, without and with its `use_reentrant`; `compiled`, of which torch.compile compiles one block. Attention is
scaled_dot_product_attention. The last line is "N passed, N failed[, N skipped]"; exit code 1 if something has failed, 77
if there is no GPU.
"""

import argparse
import os
import shutil
import signal
import sys
import sysconfig

KINDS = ("plain", "checkpoint", "reentrant", "compiled")
STEPS = 8
VOCAB, HIDDEN, HEADS, LENGTH, ROWS, LAYERS = 512, 128, 4, 64, 4, 3
ADAMW = {"lr": 1e-3, "betas": (0.9, 0.95), "eps": 1e-6, "weight_decay": 0.01}
CLIPPING = 1.0
# fp32: the norm and the update round in another order than torch's, which changes weights by some 1e-7 of their value
# in each step. bf16: such a change may round a weight to the next bf16 number, which is 2^-8 of its value away. That
# happens to few weights, so the loss changes by much less.
TOLERANCE = {"fp32": 2e-6, "bf16": 1e-3}


def arguments():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda")
    parser.add_argument("--only", default=",".join(KINDS), help="kinds of models, separated by commas")
    parser.add_argument("--compile-seconds", type=int, default=60, help="time limit of the compiled model")
    options = parser.parse_args()
    if unknown := set(options.only.split(",")) - set(KINDS):
        parser.error(f"--only: no kind {', '.join(sorted(unknown))}; the kinds are {', '.join(KINDS)}")
    return options


if __name__ == "__main__":
    OPTIONS = arguments()
    # Before the imports: zerorun chooses its device, and CUDA its libraries' settings, when they are loaded.
    os.environ["ZERORUN_DEVICE"] = OPTIONS.device
    os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")  # cuBLAS is deterministic with it

import torch  # noqa: E402
from torch.nn import functional as F  # noqa: E402
from torch.utils.checkpoint import checkpoint  # noqa: E402

import zerorun  # noqa: E402


class Block(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.before_attention = torch.nn.LayerNorm(HIDDEN)
        self.qkv = torch.nn.Linear(HIDDEN, 3 * HIDDEN)
        self.out = torch.nn.Linear(HIDDEN, HIDDEN)
        self.before_mlp = torch.nn.LayerNorm(HIDDEN)
        self.wide = torch.nn.Linear(HIDDEN, 4 * HIDDEN)
        self.narrow = torch.nn.Linear(4 * HIDDEN, HIDDEN)

    def forward(self, x):
        rows, length, hidden = x.shape
        q, k, v = (part.view(rows, length, HEADS, hidden // HEADS).transpose(1, 2)
                   for part in self.qkv(self.before_attention(x)).split(hidden, 2))
        attended = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.out(attended.transpose(1, 2).reshape(rows, length, hidden))
        return x + self.narrow(F.gelu(self.wide(self.before_mlp(x)), approximate="tanh"))


class Model(torch.nn.Module):
    """forward(tokens of shape (rows, length)): the mean cross entropy of each next token."""

    def __init__(self, kind):
        super().__init__()
        self.kind = kind
        self.tokens = torch.nn.Embedding(VOCAB, HIDDEN)
        self.places = torch.nn.Embedding(LENGTH, HIDDEN)
        self.blocks = torch.nn.ModuleList(Block() for _ in range(LAYERS))
        self.norm = torch.nn.LayerNorm(HIDDEN)
        self.dropout = torch.nn.Dropout(0.1)

    def forward(self, tokens):
        x = self.tokens(tokens) + self.places.weight[:tokens.size(1)]
        for block in self.blocks:
            if self.kind in ("checkpoint", "reentrant"):
                # Dropout inside: the second forward must draw the random numbers of the first.
                x = checkpoint(lambda y, of=block: self.dropout(of(y)), x, use_reentrant=self.kind == "reentrant")
            else:
                x = self.dropout(block(x))
        logits = F.linear(self.norm(x), self.tokens.weight)
        return F.cross_entropy(logits[:, :-1].reshape(-1, VOCAB).float(), tokens[:, 1:].reshape(-1))


def make_model(kind):
    torch.manual_seed(1)
    model = Model(kind)
    for module in (model.tokens, model.places):
        torch.nn.init.normal_(module.weight, std=0.02)
    if kind == "compiled":
        torch._dynamo.reset()
        torch._dynamo.utils.counters.clear()
        model.blocks[1].compile()
    return model


def batch(step, device):
    """The same batch, with the same dropout after it, for the same step."""
    tokens = torch.randint(0, VOCAB, (ROWS, LENGTH), generator=torch.Generator().manual_seed(step % 2))
    torch.manual_seed(100 + step)
    return tokens.to(device)


def check_compiled(kind):
    if kind == "compiled" and torch._dynamo.utils.counters["stats"]["unique_graphs"] < 1:
        raise AssertionError("torch.compile has compiled nothing")


def train_plainly(kind, precision, device):
    """Returns the losses. In bf16 the optimizer updates weights in fp32, of which the model has the rounded ones."""
    model = make_model(kind).to(device)
    parameters = list(model.parameters())
    masters = parameters
    if precision == "bf16":
        model.to(torch.bfloat16)
        masters = [p.detach().float().requires_grad_() for p in parameters]  # start rounded, like the engine's
    optimizer = torch.optim.AdamW(masters, **ADAMW)
    losses = []
    for step in range(STEPS):
        loss = model(batch(step, device))
        loss.backward()
        if precision == "bf16":
            for parameter, master in zip(parameters, masters):
                master.grad, parameter.grad = parameter.grad.float(), None
        torch.nn.utils.clip_grad_norm_(masters, CLIPPING)
        optimizer.step()
        optimizer.zero_grad()
        if precision == "bf16":
            with torch.no_grad():
                for parameter, master in zip(parameters, masters):
                    parameter.copy_(master)
        losses.append(loss.item())
    check_compiled(kind)
    return losses


def train_with_engine(kind, precision, stage, device):
    """Returns the losses, and the weights in the end on the CPU."""
    config = {
        "train_micro_batch_size_per_gpu": ROWS, "gradient_clipping": CLIPPING, "bf16": {"enabled": precision == "bf16"},
        "optimizer": {"type": "AdamW", "params": ADAMW},
        "zero_optimization": {"stage": stage, "stage3_param_persistence_threshold": 0},
    }
    engine, *_ = zerorun.initialize(model=make_model(kind), config=config)
    assert engine.device.type == device, f"the engine trains on {engine.device}"
    losses = []
    for step in range(STEPS):
        loss = engine(batch(step, device))
        engine.backward(loss)
        engine.step()
        losses.append(loss.item())
    check_compiled(kind)
    weights = engine.consolidated_16bit_state_dict()
    engine.destroy()
    return losses, weights


def largest_difference(losses, expected):
    return max(abs(mine - theirs) / abs(theirs) for mine, theirs in zip(losses, expected))


class Results:
    def __init__(self):
        self.counts = {"passed": 0, "failed": 0, "skipped": 0}

    def add(self, result, text):
        self.counts[result] += 1
        print(f"{result:8} {text}", flush=True)

    def close(self):
        skipped = f", {self.counts['skipped']} skipped" if self.counts["skipped"] else ""
        print(f"{self.counts['passed']} passed, {self.counts['failed']} failed{skipped}", flush=True)
        return 1 if self.counts["failed"] or not self.counts["passed"] else 0


def check(kind, precision, device, results):
    name = f"{kind}, {precision}"
    expected = train_plainly(kind, precision, device)
    losses, weights = train_with_engine(kind, precision, 0, device)
    difference = largest_difference(losses, expected)
    if not expected[-1] < 0.95 * expected[0]:
        results.add("failed", f"{name}: the plain loop does not learn: losses {expected}")
    results.add("passed" if difference <= TOLERANCE[precision] else "failed",
                f"{name}: losses of stage 0 and of a plain loop differ by {difference:.1e}, allowed are "
                f"{TOLERANCE[precision]:.0e}; the last is {losses[-1]:.4f}")
    again, weights_again = train_with_engine(kind, precision, 3, device)
    unequal = [key for key, value in weights.items() if not torch.equal(value, weights_again[key])]
    if losses == again and not unequal:
        results.add("passed", f"{name}: stage 3 has the bits of stage 0")
    else:
        results.add("failed", f"{name}: stage 3 does not have the bits of stage 0: losses {again} and {losses}, weights "
                              f"{', '.join(unequal) or 'are equal'}")


def why_not_compiled(device):
    """The reason why torch.compile cannot work here, or an empty text."""
    if device == "cpu":
        return "" if shutil.which(os.environ.get("CXX", "g++")) else "torch.compile needs g++ for the CPU"
    try:
        import triton  # noqa: F401
    except ImportError as error:
        return f"torch.compile needs Triton ({error})"
    if not any(shutil.which(name) for name in (os.environ.get("CC", "gcc"), "gcc", "clang", "cc")):
        return "Triton needs a C compiler"
    if not os.path.isfile(os.path.join(sysconfig.get_path("include"), "Python.h")):
        return f"Triton needs Python's headers, {sysconfig.get_path('include')}/Python.h"
    return ""


def limit(seconds, results):
    """Ends the process with a failure in so many seconds. A compiler that hangs cannot be ended otherwise."""

    def end(number, frame):
        results.add("failed", f"compiled: not done after {seconds} s")
        results.close()
        os._exit(1)

    signal.signal(signal.SIGALRM, end)
    signal.alarm(seconds)


def main():
    device = OPTIONS.device
    if device == "cuda" and not torch.cuda.is_available():
        print("skipped: torch finds no GPU")
        return 77
    torch.use_deterministic_algorithms(True)
    if device == "cuda":
        print(f"{torch.cuda.get_device_name()}, torch {torch.__version__}, zerorun {zerorun.__version__}", flush=True)
        torch.backends.cuda.enable_cudnn_sdp(False)  # so that attention has a deterministic backward
    results = Results()
    for kind in KINDS:
        if kind not in OPTIONS.only.split(","):
            continue
        if kind == "compiled":
            if reason := why_not_compiled(device):
                results.add("skipped", f"compiled: {reason}")
                continue
            limit(OPTIONS.compile_seconds, results)
        for precision in ("fp32", "bf16"):
            try:
                check(kind, precision, device, results)
            except Exception as error:  # noqa: BLE001 the other kinds go on
                results.add("failed", f"{kind}, {precision}: {type(error).__name__}: {str(error)[-2000:]}")
    signal.alarm(0)
    return results.close()


if __name__ == "__main__":
    sys.exit(main())
