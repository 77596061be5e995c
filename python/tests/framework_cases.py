"""The programs of DeepSpeed's users (frameworks/): their cases, how they are started, and how near two runs are. test_frameworks.py and
benchmarks/peers/frameworks use it."""

import json
import os
import pathlib
import subprocess
import sys

from launch import environment, free_port

FRAMEWORKS = pathlib.Path(__file__).parent / "frameworks"
STAGES = (0, 1, 2, 3)

# Each program's arguments with what follows the stage, and the largest relative difference between the losses of two runs that is
# allowed. DPO's loss is of differences between sums of logarithms. (Neighbouring bf16 numbers are 0.4 to 0.8 % apart.)
ALLOWED = {
    ("accelerate_loop.py", "fp32"): 1e-6, ("accelerate_loop.py", "bf16"): 1e-3,
    ("launched.py", "fp32"): 1e-6,
    ("trainer_loop.py", "gpt2"): 1e-6, ("trainer_loop.py", "llama"): 1e-6,
    ("trl_loop.py", "sft"): 1e-6, ("trl_loop.py", "dpo"): 5e-6,
    ("trl_loop.py", "sft_peft"): 1e-6, ("trl_loop.py", "dpo_peft"): 5e-6,
    ("peft_loop.py", "not_reentrant"): 1e-6, ("peft_loop.py", "reentrant"): 1e-6,
    ("two_engines.py", "gan"): 1e-6, ("two_engines.py", "distillation"): 1e-6,
    ("generation_loop.py", "gpt2"): 1e-6, ("generation_loop.py", "llama"): 1e-6,
    ("lightning_loop.py", "fabric"): 1e-6, ("lightning_loop.py", "trainer"): 1e-6,
}
CASES = [(program, str(stage), kind) for program, kind in ALLOWED for stage in STAGES if kind != "bf16" or stage > 1]
# What every change runs, in the same ranks; the others run with ZERORUN_TEST_ALL.
QUICK = [("launched.py", "2", "fp32"), ("accelerate_loop.py", "2", "fp32"), ("peft_loop.py", "2", "not_reentrant"),
         ("trainer_loop.py", "3", "llama"), ("trl_loop.py", "3", "dpo"), ("two_engines.py", "2", "gan")]
# The cases in which DeepSpeed 0.19.8 does not train as plain torch does, and why.
WRONG_IN_DEEPSPEED = {
    ("two_engines.py", "3", "gan"): "trains the discriminator with what the generator's loss has left in it",
}


def plain_of(case):
    """The case of plain torch. There is none in bf16, whose reference is DeepSpeed: DDP has no fp32 weights beside those of 16 bits."""
    return None if case[2] == "bf16" else (case[0], "plain", case[2])


def run(case, folder, corpus, variables):
    """Runs a case on two ranks of the CPU, in this Python's environment with these variables, and returns what the program has written, with
    the sums of the tensors that it has saved. Raises RuntimeError with the program's output."""
    program, stage, kind = case
    out = _out(case, folder)
    launcher = ["torch.distributed.run", "--nproc_per_node", "2", "--master_port"]
    if program == "launched.py" and stage != "plain":
        launcher = _accelerate(case, folder)
    done = _start(launcher, _command(case, folder, corpus), folder, variables)
    if done.returncode != 0 and not (out.exists() and variables.get("MAY_ABORT")):
        raise RuntimeError(f"exit code {done.returncode} of {' '.join(case)}\n{done.stdout[-8000:]}")
    return _found(out)


def run_together(cases, folder, corpus, variables):
    """Runs cases one after the other in the same ranks, which `accelerate launch` starts as for launched.py, the first. Returns what run()
    returns, by case."""
    words = [str(FRAMEWORKS / "together.py")]
    for number, case in enumerate(cases):
        words += ["--"] * (number > 0) + _command(case, folder, corpus)
    done = _start(_accelerate(cases[0], folder), words, folder, variables)
    if done.returncode != 0:
        raise RuntimeError(f"exit code {done.returncode} of {' '.join(words)}\n{done.stdout[-8000:]}")
    return {case: _found(_out(case, folder)) for case in cases}


def _accelerate(case, folder):
    _, stage, kind = case
    return ["accelerate.commands.launch", "--config_file", str(_yaml(_out(case, folder), stage, kind)), "--main_process_port"]


def _out(case, folder):
    return pathlib.Path(folder, "-".join(case).replace(".py", "") + ".json")


def _command(case, folder, corpus):
    program, stage, kind = case
    return [str(FRAMEWORKS / program), stage, kind, *([] if program in ("two_engines.py", "lightning_loop.py") else [str(corpus)]),
            str(_out(case, folder))]


def _start(launcher, command, folder, variables):
    """`launcher` ends with the option for a port."""
    more = {"HF_HUB_OFFLINE": "1", "TOKENIZERS_PARALLELISM": "false", **variables}
    path = [str(FRAMEWORKS), *filter(None, [variables.get("PYTHONPATH")])]
    # accelerate adds the current folder to PYTHONPATH, so it must not be one with a folder zerorun.
    return subprocess.run([sys.executable, "-P", "-m", *launcher, str(free_port()), *command], timeout=300, check=False, cwd=folder,
                          env={**environment(), **more, "PYTHONPATH": os.pathsep.join(path)}, stdout=subprocess.PIPE,
                          stderr=subprocess.STDOUT, text=True)


def _found(out):
    found = json.loads(out.read_text())
    if "saved" in found:
        found["saved"] = sums(found["saved"])
    return found


def _yaml(out, stage, precision):
    config, yaml = out.with_suffix(".ds_config.json"), out.with_suffix(".yaml")
    config.write_text(json.dumps({
        "_comment": "the optimizer is the program's", "bf16": {"enabled": precision == "bf16"},
        "zero_optimization": {"stage": int(stage), "overlap_comm": True, "contiguous_gradients": True, "reduce_bucket_size": "auto",
                              "stage3_gather_16bit_weights_on_model_save": True},
        "gradient_accumulation_steps": "auto", "gradient_clipping": "auto", "train_batch_size": "auto",
        "train_micro_batch_size_per_gpu": "auto"}))
    yaml.write_text(f"""compute_environment: LOCAL_MACHINE
debug: false
deepspeed_config:
  deepspeed_config_file: {config}
  zero3_init_flag: true
distributed_type: DEEPSPEED
machine_rank: 0
main_training_function: main
num_machines: 1
num_processes: 2
rdzv_backend: static
same_network: true
use_cpu: false
""")
    return yaml


# The gradient of a bias of the keys is 0 but for rounding, which Adam makes as large as any other.
BIAS_WITH_KEYS = "attn.c_attn.bias"


def sums(folder):
    """Of each tensor in the safetensors files of a folder three sums: of absolute values; and, with a weight for each position, of
    absolute values and of those that are positive. Terms do not cancel, so sums of two runs are as near as the elements, and another
    order or sign of elements has other sums."""
    from safetensors import safe_open

    found = {}
    for file in sorted(pathlib.Path(folder).glob("*.safetensors")):
        with safe_open(file, "pt") as tensors:
            found.update({name: _sums_of(name, tensors.get_tensor(name).double().flatten()) for name in tensors.keys()})
    return found


def _sums_of(name, values):
    import torch

    whole = values.abs().sum().item()
    if name.endswith(BIAS_WITH_KEYS):
        queries, _, of_values = values.chunk(3)
        values = torch.cat([queries, of_values])
    weights = 0.5 + torch.arange(values.numel(), dtype=torch.float64) * 0.6180339887498949 % 1
    return [whole, (values.abs() * weights).sum().item(), (values.clamp(min=0) * weights).sum().item()]


def distance(a, b):
    """The largest relative difference between two losses of two runs: lists, or dicts, of the same shape."""
    if isinstance(a, dict):
        assert a.keys() == b.keys(), (sorted(a), sorted(b))
        return max((distance(a[key], b[key]) for key in a), default=0.0)
    if isinstance(a, list):
        return max((distance(x, y) for x, y in zip(a, b, strict=True)), default=0.0)
    return 0.0 if a == b else abs(a - b) / max(abs(a), abs(b))
