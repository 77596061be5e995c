"""Trains a small GPT for thousands of steps under ZeRO and in plain torch, and compares the curves of losses.

  build/bin/zerorun --num_gpus 2 --device cpu PYTHON benchmarks/long_curve.py zero OUT.json [--steps 2000]
  PYTHON benchmarks/long_curve.py plain OUT.json [--order 1]          # one process, the micro-batches in another order
  PYTHON benchmarks/long_curve.py compare ZERO.json PLAIN.json OTHER.json

bf16, an accumulation of 4, clipping, warm-up and decay, and recomputed blocks, at stage 3 on two ranks; plain torch has the same samples,
bf16 parameters, fp32 master weights, and fp32 sums of bf16 gradients. Two plain runs that add up their micro-batches in another order
show how far runs part that differ by rounding alone. PYTHON has torch and, for `zero`, the wheel.
"""

import argparse
import json
import pathlib

import torch
from torch.utils.checkpoint import checkpoint

ACCUMULATION, RANKS, BATCH, SEQUENCE, HIDDEN, LAYERS = 4, 2, 2, 32, 64, 3
RATE, WARMUP = 2e-3, 40


class Block(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.norms = torch.nn.ModuleList(torch.nn.LayerNorm(HIDDEN) for _ in range(2))
        self.qkv = torch.nn.Linear(HIDDEN, 3 * HIDDEN)
        self.out = torch.nn.Linear(HIDDEN, HIDDEN)
        self.mlp = torch.nn.Sequential(torch.nn.Linear(HIDDEN, 4 * HIDDEN), torch.nn.GELU(), torch.nn.Linear(4 * HIDDEN, HIDDEN))

    def forward(self, x):
        heads = self.qkv(self.norms[0](x)).view(*x.shape[:2], 3, 4, HIDDEN // 4).permute(2, 0, 3, 1, 4)
        mixed = torch.nn.functional.scaled_dot_product_attention(*heads, is_causal=True)
        x = x + self.out(mixed.transpose(1, 2).reshape(x.shape))
        return x + self.mlp(self.norms[1](x))


class Model(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.tokens = torch.nn.Embedding(256, HIDDEN)
        self.places = torch.nn.Embedding(SEQUENCE, HIDDEN)
        self.blocks = torch.nn.ModuleList(Block() for _ in range(LAYERS))
        self.norm = torch.nn.LayerNorm(HIDDEN)
        self.head = torch.nn.Linear(HIDDEN, 256, bias=False)

    def forward(self, text):
        x = self.tokens(text[:, :-1]) + self.places(torch.arange(SEQUENCE))
        for block in self.blocks:
            x = checkpoint(block, x, use_reentrant=False)
        logits = self.head(self.norm(x)).float()
        return torch.nn.functional.cross_entropy(logits.flatten(0, 1), text[:, 1:].flatten())


def make_model():
    torch.manual_seed(11)
    model = Model()
    for parameter in model.parameters():
        if parameter.dim() > 1:
            torch.nn.init.normal_(parameter, std=0.05)
    return model


def micro_batches(text, step):
    """The micro-batches of all ranks, by micro-step and rank."""
    drawn = torch.randint(0, len(text) - SEQUENCE - 1, (ACCUMULATION, RANKS, BATCH), generator=torch.Generator().manual_seed(step))
    return [[torch.stack([text[at:at + SEQUENCE + 1] for at in of_rank.tolist()]) for of_rank in of_step] for of_step in drawn]


def rate_of(step, steps):
    return RATE * min(step / WARMUP, max(0.0, (steps - step) / (steps - WARMUP)))


def train_zero(text, steps):
    import zerorun

    engine, *_ = zerorun.initialize(model=make_model(), config={
        "train_micro_batch_size_per_gpu": BATCH, "gradient_accumulation_steps": ACCUMULATION, "gradient_clipping": 1.0,
        "bf16": {"enabled": True}, "zero_optimization": {"stage": 3, "stage3_param_persistence_threshold": 0},
        "optimizer": {"type": "AdamW", "params": {"lr": RATE, "betas": [0.9, 0.95], "weight_decay": 0.1}}})
    rank, losses = torch.distributed.get_rank(), []
    for step in range(steps):
        engine.optimizer.param_groups[0]["lr"] = rate_of(step + 1, steps)
        total = torch.zeros(())
        for of_step in micro_batches(text, step):
            loss = engine(of_step[rank])
            engine.backward(loss)
            engine.step()
            total += loss.detach() / ACCUMULATION / RANKS
        torch.distributed.all_reduce(total)
        losses.append(total.item())
    return losses if rank == 0 else None


def train_plain(text, steps, order):
    model = make_model().to(torch.bfloat16)
    parameters = list(model.parameters())
    masters = [parameter.detach().float() for parameter in parameters]
    optimizer = torch.optim.AdamW(masters, lr=RATE, betas=(0.9, 0.95), weight_decay=0.1)
    losses = []
    for step in range(steps):
        optimizer.param_groups[0]["lr"] = rate_of(step + 1, steps)
        sums, total = [torch.zeros_like(master) for master in masters], 0.0
        batches = [batch for of_step in micro_batches(text, step) for batch in of_step]
        for batch in batches if order == 0 else batches[::-1]:
            loss = model(batch)
            loss.backward()
            total += loss.item() / len(batches)
            for added, parameter in zip(sums, parameters):
                added += parameter.grad.float() / len(batches)
                parameter.grad = None
        for master, added in zip(masters, sums):
            master.grad = added
        torch.nn.utils.clip_grad_norm_(masters, 1.0)
        optimizer.step()
        with torch.no_grad():
            for parameter, master in zip(parameters, masters):
                parameter.copy_(master)
        losses.append(total)
    return losses


def compare(zero, plain, other):
    print("steps          loss    ZeRO - plain           plain in another order - plain")
    print("                       mean      largest      mean      largest")
    for begin in range(0, len(plain), max(1, len(plain) // 10)):
        end = begin + max(1, len(plain) // 10)
        rows = []
        for curve in (zero, other):
            apart = [a - b for a, b in zip(curve[begin:end], plain[begin:end])]
            rows += [sum(apart) / len(apart), max(abs(each) for each in apart)]
        print(f"{begin + 1:5} to {min(end, len(plain)):5}  {sum(plain[begin:end]) / len(plain[begin:end]):.4f}  "
              f"{rows[0]:+.5f}  {rows[1]:.5f}    {rows[2]:+.5f}  {rows[3]:.5f}")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=["zero", "plain", "compare"])
    parser.add_argument("files", nargs="+", type=pathlib.Path)
    parser.add_argument("--steps", type=int, default=2000)
    parser.add_argument("--order", type=int, default=0)
    options = parser.parse_args()
    if options.what == "compare":
        compare(*(json.loads(file.read_text()) for file in options.files))
        return
    torch.set_num_threads(1)
    source = pathlib.Path(__file__).resolve().parents[1] / "docs/guide.md"
    text = torch.tensor(list(source.read_bytes()))
    losses = train_zero(text, options.steps) if options.what == "zero" else train_plain(text, options.steps, options.order)
    if losses:
        options.files[0].write_text(json.dumps(losses))


if __name__ == "__main__":
    main()
