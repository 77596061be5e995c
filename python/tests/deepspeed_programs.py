"""The programs written for DeepSpeed (programs/plain_loop.py and programs/lora_loop.py): their cases, and how near the
losses of two runs are. test_programs.py and benchmarks/peers/programs use it."""

import re

# The arguments of each program, and the largest relative difference between the losses of two runs that is allowed.
# (Neighbouring bf16 numbers are 0.4 to 0.8 % apart.)
CASES = {
    **{("plain_loop.py", str(stage), precision): allowed
       for precision, allowed in (("fp32", 1e-6), ("bf16", 1e-3)) for stage in range(4)},
    **{("lora_loop.py", str(stage), form): 1e-6
       for stage, form in ((2, "not_reentrant"), (3, "reentrant"), (3, "not_reentrant"))},
}
# The cases in which DeepSpeed 0.19.8 does not train as plain torch does, and why.
WRONG_IN_DEEPSPEED = {
    ("plain_loop.py", "0", "bf16"): "begins with an optimizer step whose gradients are 0",
}


def for_zerorun(text):
    """A program with the imports that docs/python.md asks for, and nothing else changed."""
    text, changed = re.subn(r"^import deepspeed$", "import zerorun as deepspeed", text, flags=re.MULTILINE)
    assert changed == 1
    return re.sub(r"^from deepspeed\.", "from zerorun.", text, flags=re.MULTILINE)


def distance(losses, others):
    """The largest relative difference between two runs' losses, which are lists of each rank's."""
    pairs = [(a, b) for mine, theirs in zip(losses, others, strict=True) for a, b in zip(mine, theirs, strict=True)]
    return max(abs(a - b) / abs(b) for a, b in pairs)


def plain_losses(case, as_deepspeed=False):
    """The losses of plain torch. `as_deepspeed`: with what is wrong in DeepSpeed."""
    from plain_torch import train, train_lora

    program, _, kind = case
    return train(kind, idle_step=as_deepspeed)[0] if program == "plain_loop.py" else train_lora(kind == "reentrant")
