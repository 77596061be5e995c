"""Records what the programs of python/tests/frameworks compute under DeepSpeed and as plain torch.

benchmarks/peers/frameworks runs this in the environment with DeepSpeed. Every run under DeepSpeed must name DeepSpeed's own engine.
"""

import argparse
import json
import pathlib
import sys
import tempfile

ROOT = pathlib.Path(__file__).resolve().parents[2]
TESTS = ROOT / "python/tests"
sys.path[:0] = [str(TESTS), str(TESTS / "frameworks")]

from framework_cases import CASES, distance, plain_of, run  # noqa: E402

KEPT = ("losses", "resumed", "rates", "best", "after", "loaded", "norms", "saved", "error")


def record(case, folder, corpus):
    # DeepSpeed's own threads of Gloo sometimes abort the process when all is written.
    try:
        found = run(case, folder, corpus, {"DS_ACCELERATOR": "cpu", "MAY_ABORT": "1"})
    except RuntimeError as failure:
        lines = [line for line in str(failure).splitlines() if "Error: " in line and "ChildFailed" not in line]
        return {"error": lines[-1].split("]: ")[-1][:300] if lines else str(failure)[-300:]}
    engine = found["engine"]
    if case[1] != "plain" and (engine["class"] != "deepspeed.runtime.engine.DeepSpeedEngine" or engine["elsewhere"]):
        sys.exit(f"expected DeepSpeed's engine, not {engine}")
    return {name: found[name] for name in KEPT if found.get(name) is not None}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--file", default=TESTS / "data/framework_losses.json", type=pathlib.Path, help="what to write")
    parser.add_argument("--only", default="", help="only cases with this text; the others stay as they are in the file")
    options = parser.parse_args()
    import accelerate
    import corpus as texts
    import deepspeed
    import torch
    import transformers
    import trl
    from deepspeed.accelerator import get_accelerator

    for name in ("FusedAdamBuilder", "CPUAdamBuilder", "ShareMemCommBuilder"):
        get_accelerator().create_op_builder(name).load(verbose=False)  # else a rank that waits for the other may time out
    packages = (deepspeed, torch, transformers, accelerate, trl)
    runs = json.loads(options.file.read_text())["runs"] if options.file.exists() else {}
    plain = sorted({plain_of(case) for case in CASES} - {None})
    with tempfile.TemporaryDirectory() as folder:
        texts.make(pathlib.Path(folder, "corpus"))
        for case in [*plain, *CASES]:
            name = " ".join(case)
            if options.only not in name:
                continue
            runs[name] = record(case, folder, f"{folder}/corpus")
            reference = runs.get(" ".join(plain_of(case) or ()), {})
            beside = distance(runs[name]["losses"], reference["losses"]) if "losses" in runs[name] and "losses" in reference else None
            print(f"{name:38} {runs[name].get('error', f'{beside:.1e} beside plain torch' if beside is not None else '')}", flush=True)
    lines = ",\n".join(f"{json.dumps(name)}: {json.dumps(runs[name])}" for name in sorted(runs))
    versions = {package.__name__: package.__version__ for package in packages}
    options.file.write_text(f'{{"versions": {json.dumps(versions)}, "runs": {{\n{lines}\n}}}}\n')


if __name__ == "__main__":
    main()
