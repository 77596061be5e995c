"""Inputs of initialize() that no other test has: odd config files and dicts, and a model that has an engine."""

import copy
import os

import pytest
import zerorun
from small import config, make, net, step
from zerorun import UserError


def refused(match, conf):
    with pytest.raises(UserError, match=match):
        zerorun.initialize(model=net(), config=conf)


def test_configs_that_are_no_json(tmp_path):
    circular = config()
    circular["itself"] = circular
    refused("holds what JSON has not", circular)
    deep = config()
    for _ in range(100_000):
        deep = {"a": deep}
    refused("holds what JSON has not", deep)
    wide = tmp_path / "wide.json"
    wide.write_bytes('{"train_batch_size": 2}'.encode("utf-16"))
    refused("wide.json.*expected a file of UTF-8 text", wide)
    refused("cannot read the config 'a.x00b'", "a\0b")
    odd = os.fsdecode(os.fsencode(tmp_path) + b"/\xff.json")
    refused("cannot read the config .*: No such file", odd)
    with open(odd, "w", encoding="utf-8") as file:
        file.write("{")
    refused("json:1:2: error", odd)


def test_configs_that_never_end(tmp_path):
    os.mkfifo(tmp_path / "pipe.json")  # nobody writes into it
    refused("pipe.json", tmp_path / "pipe.json")
    (tmp_path / "sparse.json").touch()
    os.truncate(tmp_path / "sparse.json", 5_000_000_000)
    refused("sparse.json: it has more than 16 MiB", tmp_path / "sparse.json")
    refused("/dev/zero: it has more than 16 MiB", "/dev/zero")


@pytest.mark.parametrize("stage", [0, 1, 2, 3])
def test_a_model_that_has_an_engine(stage):
    model = net()
    engine = make(stage, model=model)
    step(engine)
    engine = make(stage, model=model)  # the same name: the old one is garbage now
    step(engine)
    second = make(stage, model=model)
    with pytest.raises(UserError, match="another engine, which was made later, has taken parameter .* from this one"):
        step(engine)
    step(second)
    engine.destroy()
    step(second)
    copy.deepcopy(model)  # the second engine's hooks are still there
    second.destroy()
    assert not any(getattr(module, name) for module in model.modules() for name in vars(module) if "_hooks" in name)
