"""Programs of DeepSpeed's users on Accelerate, transformers' Trainer, trl, PEFT and Lightning, as they are: they find this engine by the name
deepspeed, and train as under DeepSpeed 0.19.8 and as DistributedDataParallel, on two ranks."""

import functools
import importlib.metadata
import json
import pathlib
import subprocess
import sys

import pytest
import torch
import zerorun
from framework_cases import (ALLOWED, BIAS_WITH_KEYS, CASES, FRAMEWORKS, QUICK, WRONG_IN_DEEPSPEED, distance, plain_of,
                             run, run_together, sums)
from launch import ALL

pytest.importorskip("trl", reason="the frameworks are installed for Python 3.11 and newer")
from zerorun.as_deepspeed import variables  # noqa: E402

FILE = json.loads((pathlib.Path(__file__).parent / "data/framework_losses.json").read_text())
# transformers 5 counts the tokens of a batch otherwise than 4.57, and so has other losses: plain torch beside it is the reference.
IS_RECORDED = FILE["versions"]["transformers"] == importlib.metadata.version("transformers")
RECORDED = FILE["runs"]
PACKAGE = pathlib.Path(zerorun.__file__).resolve().parent


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("frameworks")


@pytest.fixture(scope="module")
def corpus(folder):
    subprocess.run([sys.executable, "-P", FRAMEWORKS / "corpus.py", folder / "corpus"], check=True)
    return folder / "corpus"


@pytest.fixture(scope="module")
def plain(folder, corpus):
    """What plain torch computes: recorded; with ZERORUN_TEST_ALL or another transformers, on this machine."""

    @functools.cache
    def of(case):
        return run(case, folder, corpus, {}) if ALL or not IS_RECORDED else RECORDED[" ".join(case)]

    return of


@pytest.fixture(scope="module")
def found(folder, corpus):
    """What a case computes under the engine."""
    together = functools.cache(lambda: run_together(QUICK, folder, corpus, variables()))
    return lambda case: run(case, folder, corpus, variables()) if ALL else together()[case]


@pytest.mark.parametrize("case", CASES if ALL else QUICK, ids=" ".join)
def test_a_program_on_a_framework(case, found, plain):
    program, stage, kind = case
    ran, allowed = found(case), ALLOWED[program, kind]
    check_engine(ran["engine"])
    theirs = RECORDED.get(" ".join(case), {}) if IS_RECORDED else {}  # Lightning's strategy gives DeepSpeed no device on CPUs
    if "losses" in theirs and case not in WRONG_IN_DEEPSPEED:
        compare(ran, theirs, allowed)
    if plain_of(case) is not None:
        compare(ran, plain(plain_of(case)), allowed)
        if case in WRONG_IN_DEEPSPEED and theirs:
            assert distance(theirs["losses"], plain(plain_of(case))["losses"]) > allowed
    if program in ("trainer_loop.py", "peft_loop.py"):
        assert ran["resumed"] == ran["losses"][0][-len(ran["resumed"]):]  # to the bit
    if program == "peft_loop.py":
        assert all("lora_" in name for name in ran["saved"])


def check_engine(engine):
    """It is ours, and no file of another package deepspeed is loaded."""
    assert engine["class"] == "zerorun.engine.Engine" and engine["version"] == "0.19.8"
    for file in (engine["file"], engine["package"], *engine["elsewhere"]):
        assert pathlib.Path(file).resolve().is_relative_to(PACKAGE), file


def compare(ran, other, allowed):
    assert distance(ran["losses"], other["losses"]) <= allowed
    # transformers cannot resume on CPUs without DeepSpeed.
    for name, factor in (("resumed", 1), ("loaded", 1), ("after", 1), ("norms", 10)):
        if other.get(name):
            assert distance(ran[name], other[name]) <= factor * allowed, name
    if other.get("saved"):
        compare_weights(ran["saved"], other["saved"], 10 * allowed)
    assert ran.get("rates") == other.get("rates") and ran.get("best") == other.get("best")


def compare_weights(ran, other, allowed):
    assert ran.keys() ^ other.keys() <= {"lm_head.weight"}  # it is tied, and some leave it out
    for name in ran.keys() & other.keys():
        # Of DeepSpeed's runs the first sum is recorded, which is of all elements.
        first, *rest = other[name] if isinstance(other[name], list) else [other[name]]
        assert distance(ran[name][0], first) <= (1e-4 if name.endswith(BIAS_WITH_KEYS) else allowed), name
        assert distance(ran[name][1:len(rest) + 1], rest) <= allowed, name


def test_sums_see_order_and_sign(tmp_path):
    from safetensors.torch import save_file

    values = torch.randn(30, generator=torch.Generator().manual_seed(0))
    found = []
    for index, tensor in enumerate((values, values.flip(0), -values, values * (1 + 1e-7))):
        (tmp_path / str(index)).mkdir()
        save_file({"weight": tensor.contiguous()}, tmp_path / str(index) / "model.safetensors")
        found.append(sums(tmp_path / str(index)))
    with pytest.raises(AssertionError):
        compare_weights(found[1], found[0], 1e-3)
    with pytest.raises(AssertionError):
        compare_weights(found[2], found[0], 1e-3)
    compare_weights(found[3], found[0], 1e-6)
