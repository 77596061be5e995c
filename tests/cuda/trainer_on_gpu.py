#!/usr/bin/env python3
"""Runs trainer_program.py, a program on transformers' Trainer that knows nothing of this package, on one rank: plainly, and with a
ds_config.json, for which it finds this package by the name deepspeed.

    trainer_on_gpu.py [--device cuda|cpu]

In fp32 and in 16 bits: the losses are those of the plain program up to a tolerance; stages 2 and 3, also with states on the host and with
recomputation, have the same losses and weights to the bit, and so has what is resumed from a checkpoint. The last line is "N passed, N
failed"; exit code 1 if something has failed, 77 if there is no GPU or no transformers.
"""

import argparse
import importlib.util
import json
import os
import pathlib
import subprocess
import sys
import tempfile

PROGRAM = pathlib.Path(__file__).absolute().parent / "trainer_program.py"
OPTIONS = ("--per_device_train_batch_size 4 --gradient_accumulation_steps 2 --max_steps 12 --save_steps 6 --learning_rate 5e-3 "
           "--warmup_steps 2 --max_grad_norm 0.5 --report_to none --seed 3 --logging_steps 6 --disable_tqdm true").split()
STAGES = {  # what is added to zero_optimization, and to the command
    "stage 2": ({"stage": 2}, []),
    "stage 2, updates on the host": ({"stage": 2, "offload_optimizer": {"device": "cpu"}}, []),
    "stage 3": ({"stage": 3, "stage3_param_persistence_threshold": 0}, []),
    "stage 3, recomputation": ({"stage": 3, "stage3_param_persistence_threshold": 0}, ["--gradient_checkpointing", "true"]),
}
# fp32: the norm and the update round in another order than torch's. bf16: the plain program has weights of fp32 and autocast, under
# DeepSpeed all weights in the forward are bf16.
TOLERANCE = {"fp32": 1e-5, "bf16": 5e-2}


MAKE_MODEL = """
import sys, torch, transformers
torch.manual_seed(1)
config = transformers.LlamaConfig(vocab_size=256, hidden_size=128, intermediate_size=256, num_hidden_layers=3, num_attention_heads=4,
                                  num_key_value_heads=2, max_position_embeddings=64)
transformers.AutoModelForCausalLM.from_config(config).save_pretrained(sys.argv[1])
"""


def start(folder, name, device, options, config=None):
    out = folder / f"{name.replace(' ', '_').replace(',', '')}.json"
    command = [sys.executable, "-P"]
    if config is not None:
        path = out.with_suffix(".ds_config.json")
        path.write_text(json.dumps(config))
        command += ["-m", "zerorun.as_deepspeed"]
        options = [*options, "--deepspeed", str(path)]
    if device == "cpu":
        options = [*options, "--use_cpu", "true", "--dataloader_pin_memory", "false"]
    log = open(out.with_suffix(".log"), "w+")  # noqa: SIM115 closed with the process
    process = subprocess.Popen([*command, str(PROGRAM), str(folder / "model"), str(out), *OPTIONS, *options], stdin=subprocess.DEVNULL, stdout=log,
                               stderr=subprocess.STDOUT, cwd=folder,
                               env={**os.environ, "ZERORUN_DEVICE": device, "CUBLAS_WORKSPACE_CONFIG": ":4096:8", "HF_HUB_OFFLINE": "1",
                                    "TOKENIZERS_PARALLELISM": "false", "OMP_NUM_THREADS": "1"})
    return out, log, process


def finish(out, log, process):
    """What the program has written. Raises RuntimeError with its output."""
    code = process.wait(timeout=240)
    with log:
        log.seek(0)
        if code != 0:
            raise RuntimeError(f"exit code {code}: {log.read()[-2500:]}")
    return json.loads(out.read_text())


def difference(found, expected):
    return max(abs(a - b) / abs(b) for a, b in zip(found["losses"], expected["losses"], strict=True))


def faults(precision, name, ran, device):
    """What is wrong with one run; `ran`: what all runs of this precision have written, by name."""
    found = ran[name]
    wrong = []
    if not found["device"].startswith(device):
        wrong.append(f"trained on {found['device']}")
    if found["resumed"] != found["losses"][-len(found["resumed"]):] or not found["resumed"]:
        wrong.append(f"resumed: {found['resumed']}, before: {found['losses']}")
    if name == "plain":
        return [*wrong, *(["does not learn"] if not found["losses"][-1] < 0.7 * found["losses"][0] else [])]
    if not found["engine"].startswith("zerorun"):
        wrong.append(f"its engine is of {found['engine']}")
    far = difference(found, ran["plain"])
    if not far <= TOLERANCE[precision]:
        wrong.append(f"losses differ from the plain program's by {far:.1e}: {found['losses']} and {ran['plain']['losses']}")
    if (found["losses"], found["saved"]) != (ran["stage 2"]["losses"], ran["stage 2"]["saved"]):
        wrong.append(f"not the bits of stage 2: {found['losses']} and {ran['stage 2']['losses']}")
    return wrong


def check(folder, device):
    """Prints a line for each run; returns the numbers of those that passed and failed."""
    counts = [0, 0]
    subprocess.run([sys.executable, "-P", "-c", MAKE_MODEL, str(folder / "model")], check=True)
    for precision in ("fp32", "bf16"):
        flags = ["--full_determinism", "true", "--bf16", str(precision == "bf16").lower()]
        started = {"plain": start(folder, f"{precision} plain", device, flags)}
        for name, (section, more) in STAGES.items():
            config = {"bf16": {"enabled": "auto"}, "zero_optimization": {**section, "stage3_gather_16bit_weights_on_model_save": True},
                      "gradient_accumulation_steps": "auto", "gradient_clipping": "auto", "train_batch_size": "auto",
                      "train_micro_batch_size_per_gpu": "auto"}
            started[name] = start(folder, f"{precision} {name}", device, [*flags, *more], config)
        ran, broken = {}, {}
        for name, parts in started.items():
            try:
                ran[name] = finish(*parts)
            except (RuntimeError, subprocess.TimeoutExpired) as error:
                broken[name] = [str(error)]
        for name in started:
            needed = {name, "plain", "stage 2"} - ran.keys()
            wrong = broken.get(name) or ([f"without {', '.join(needed)}"] if needed else faults(precision, name, ran, device))
            counts[bool(wrong)] += 1
            far = "" if name == "plain" or wrong else f"; losses differ from the plain program's by {difference(ran[name], ran['plain']):.1e}"
            print("failed" if wrong else "passed", f"{precision}, {name}: {'; '.join(wrong) or 'last loss ' + str(ran[name]['losses'][-1])}{far}",
                  flush=True)
    return counts


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda")
    device = parser.parse_args().device
    if any(importlib.util.find_spec(name) is None for name in ("transformers", "accelerate")):
        print("skipped: there is no transformers or no accelerate")
        return 77
    if device == "cuda":
        import torch

        if not torch.cuda.is_available():
            print("skipped: torch finds no GPU")
            return 77
    with tempfile.TemporaryDirectory() as folder:
        passed, failed = check(pathlib.Path(folder), device)
    print(f"{passed} passed, {failed} failed")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
