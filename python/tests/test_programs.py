"""Programs written for DeepSpeed train under the engine as under DeepSpeed 0.19.8 and plain torch, on two ranks."""

import csv
import functools
import json
import pathlib
import shutil
import subprocess

import pytest
import zerorun
from deepspeed_programs import CASES, WRONG_IN_DEEPSPEED, distance, for_zerorun, plain_losses
from launch import BUILD, PROGRAMS, SOURCE, environment, launcher, run, run_several

RECORDED = json.loads((pathlib.Path(__file__).parent / "data/deepspeed_losses.json").read_text())["runs"]
LAUNCHERS = {"plain_loop.py": "zerorun", "lora_loop.py": "torchrun"}
GPT2 = BUILD / "bin/gpt2"
ENGINE = {"class": "zerorun.engine.Engine", "file": zerorun.engine.__file__, "version": zerorun.__version__}
plain_losses = functools.cache(plain_losses)


@pytest.fixture(scope="module")
def found(tmp_path_factory):
    """What each case of a program writes. Each program is started once, and runs all its cases."""
    folder = tmp_path_factory.mktemp("programs")

    @functools.cache
    def run_all(program):
        (folder / program).write_text(for_zerorun((PROGRAMS / program).read_text()))
        cases = [case for case in CASES if case[0] == program]
        run_several([(folder / program, *case[1:], folder / f"{program}.{number}") for number, case in enumerate(cases)],
                    kind=LAUNCHERS[program])
        return {case: json.loads((folder / f"{program}.{number}").read_text()) for number, case in enumerate(cases)}

    return lambda case: run_all(case[0])[case]


@pytest.mark.parametrize("case", CASES, ids=" ".join)
def test_a_program_written_for_deepspeed(case, found):
    ran = found(case)
    assert ran["engine"] == ENGINE
    assert distance(ran["losses"], plain_losses(case)) <= CASES[case]
    theirs = RECORDED[" ".join(case)]
    if case in WRONG_IN_DEEPSPEED:
        assert distance(theirs["losses"], plain_losses(case)) > CASES[case]
        assert distance(theirs["losses"], plain_losses(case, as_deepspeed=True)) <= CASES[case]
    else:
        assert distance(ran["losses"], theirs["losses"]) <= CASES[case]
        if theirs["norm"] is not None:
            assert ran["norm"] == pytest.approx(theirs["norm"], rel=10 * CASES[case])
    assert ran.get("lr") == theirs.get("lr")


@pytest.mark.skipif(not shutil.which("mpirun"), reason="there is no mpirun: scripts/setup --cluster installs OpenMPI")
def test_under_mpirun(tmp_path):
    case, program, out = ("plain_loop.py", "3", "fp32"), tmp_path / "program.py", tmp_path / "out.json"
    program.write_text(for_zerorun((PROGRAMS / case[0]).read_text()))
    run(program, *case[1:], out, ranks=2, kind="mpirun")
    assert distance(json.loads(out.read_text())["losses"], plain_losses(case)) <= CASES[case]


@pytest.mark.skipif(not GPT2.exists(), reason="build/bin/gpt2 is not built: scripts/build release gpt2")
def test_torchrun_starts_a_program_in_cpp(tmp_path):
    (tmp_path / "config.json").write_text(json.dumps({
        "train_micro_batch_size_per_gpu": 2, "optimizer": {"type": "AdamW", "params": {"lr": 1e-3}},
        "zero_optimization": {"stage": 2}}))
    losses = {}
    for kind, more in (("zerorun", []), ("torchrun", ["--no-python"])):
        log = tmp_path / f"{kind}.csv"
        command = [*launcher(kind, 2), *more, str(GPT2), "--deepspeed", str(tmp_path / "config.json"), "--data",
                   str(SOURCE / "docs/guide.md"), "--layers", "1", "--hidden", "32", "--heads", "2", "--seq", "16",
                   "--steps", "5", "--generate", "0", "--cache", str(tmp_path), "--csv", str(log)]
        done = subprocess.run(command, env=environment(), stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
                              timeout=120, check=False)
        assert done.returncode == 0 and "2 ranks" in done.stdout, done.stdout
        with open(log, encoding="utf-8") as file:
            losses[kind] = [row["loss"] for row in csv.DictReader(file)]
    assert len(losses["zerorun"]) == 5 and losses["zerorun"] == losses["torchrun"]


def test_the_package_holds_no_path_of_the_machine_that_built_it():
    libraries = list(pathlib.Path(zerorun.__file__).parent.glob("*.so"))
    assert libraries
    for library in libraries:
        assert f"{SOURCE}/".encode() not in library.read_bytes(), library
