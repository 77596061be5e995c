"""Runs programs written for DeepSpeed under DeepSpeed and under ZeroRun, and compares their losses.

benchmarks/peers/programs runs this in the environment with DeepSpeed and the wheel. Each case is one program with its
arguments (a ZeRO stage, and a precision or a form of recomputation), started by the same torchrun on two ranks of the
CPU. Every run names the class of its engine, the file that the class is in and the version. Plain torch in one process
is the third opinion. Exits with 1 if losses differ by more than allowed.
"""

import argparse
import glob
import importlib.metadata
import importlib.util
import json
import os
import pathlib
import subprocess
import sys
import tempfile

HERE = pathlib.Path(__file__).resolve().parent
TESTS = HERE.parents[1] / "python/tests"
sys.path[:0] = [str(TESTS), str(TESTS / "programs")]

from deepspeed_programs import CASES, WRONG_IN_DEEPSPEED, distance, for_zerorun, plain_losses  # noqa: E402
from launch import free_port  # noqa: E402

ENGINES = {"DeepSpeed": "deepspeed", "ZeroRun": "zerorun"}
CLASSES = {"DeepSpeed": "deepspeed.runtime.engine.DeepSpeedEngine", "ZeroRun": "zerorun.engine.Engine"}


def run(folder, engine, case):
    """Returns what the program wrote, after a check of which engine it was."""
    program, *arguments = case
    text = (TESTS / "programs" / program).read_text()
    script, out = folder / engine / program, folder / f"{engine}.json"
    script.parent.mkdir(exist_ok=True)
    script.write_text(text if engine == "DeepSpeed" else for_zerorun(text))
    out.unlink(missing_ok=True)
    port = free_port()
    command = [sys.executable, "-P", "-m", "torch.distributed.run", "--nproc_per_node", "2", "--master_port",
               str(port), str(script), *arguments, str(out)]
    environment = dict(os.environ, OMP_NUM_THREADS="1", ZERORUN_DEVICE="cpu", PYTHONPATH=str(TESTS / "programs"))
    done = subprocess.run(command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
                          timeout=600, check=False)
    for path in glob.glob(f"/dev/shm/deepspeed_allreduce_buffer_*_{port}_*"):
        os.unlink(path)  # DeepSpeed does not remove these 66 MiB per rank
    if done.returncode != 0:
        sys.exit(f"{' '.join(case)} has failed under {engine}:\n{done.stdout[-6000:]}")
    found = json.loads(out.read_text())
    check_engine(engine, found["engine"])
    return found


def check_engine(engine, ran):
    """Ends the program if the class, its file or the version are not those of this engine's package."""
    name = ENGINES[engine]
    package = pathlib.Path(importlib.util.find_spec(name).origin).parent
    expected = {"class": CLASSES[engine], "version": importlib.metadata.version(name)}
    if not pathlib.Path(ran["file"]).is_relative_to(package) or any(ran[key] != value for key, value in expected.items()):
        sys.exit(f"expected {engine}'s engine {expected} in {package}, not {ran}")


def verdict(case, ours, theirs, plain):
    """Returns what to print, and whether it is as expected."""
    allowed = CASES[case]
    reason = WRONG_IN_DEEPSPEED.get(case)
    if reason is None:
        equal = max(distance(ours, theirs), distance(ours, plain)) <= allowed
        return "equal" if equal else "DIFFERENT", equal
    wrong = plain_losses(case, as_deepspeed=True)
    shown = max(distance(ours, plain), distance(theirs, wrong)) <= allowed < distance(theirs, plain)
    return f"DeepSpeed {reason}" if shown else f"NOT SHOWN: DeepSpeed {reason}", shown


def build_kernels():
    """Compiles what DeepSpeed would compile in its first run, where a rank that waits for the other may time out."""
    from deepspeed.accelerator import get_accelerator

    for name in ("FusedAdamBuilder", "ShareMemCommBuilder"):
        get_accelerator().create_op_builder(name).load(verbose=False)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--record", metavar="FILE", help="for what DeepSpeed computed, as JSON")
    options = parser.parse_args()
    import deepspeed
    import torch
    import zerorun

    print(f"DeepSpeed {deepspeed.__version__}, ZeroRun {zerorun.__version__}, torch {torch.__version__}; 2 ranks on the CPU")
    print("                                       largest relative difference of a loss")
    print("program                                ZeroRun,    ZeroRun,     DeepSpeed,")
    print("                                       DeepSpeed   plain torch  plain torch  allowed")
    build_kernels()
    recorded, all_fine = {}, True
    with tempfile.TemporaryDirectory() as folder:
        for case, allowed in CASES.items():
            theirs, ours = (run(pathlib.Path(folder), engine, case) for engine in ENGINES)
            plain = plain_losses(case)
            text, fine = verdict(case, ours["losses"], theirs["losses"], plain)
            all_fine = all_fine and fine
            print(f"{' '.join(case):37} {distance(ours['losses'], theirs['losses']):9.1e} {distance(ours['losses'], plain):13.1e}"
                  f" {distance(theirs['losses'], plain):12.1e} {allowed:8.0e}  {text}", flush=True)
            recorded[" ".join(case)] = {name: value for name, value in theirs.items() if name != "engine"}
    if options.record:
        versions = {"deepspeed": deepspeed.__version__, "torch": torch.__version__}
        lines = ",\n".join(f"{json.dumps(name)}: {json.dumps(value)}" for name, value in recorded.items())
        pathlib.Path(options.record).write_text(f'{{"versions": {json.dumps(versions)}, "runs": {{\n{lines}\n}}}}\n')
    sys.exit(0 if all_fine else 1)


if __name__ == "__main__":
    main()
