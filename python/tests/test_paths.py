"""Paths and tags that are not UTF-8, given as bytes, empty, or with a 0 byte, in every call that takes one."""

import json
import os
import pathlib

import pytest
import torch
import zerorun
from small import make, net, step
from zerorun import UserError

ODD = "caf\udce9"  # the byte 0xe9, which is not UTF-8


@pytest.mark.parametrize("kind", [str, os.fsencode, pathlib.Path])
@pytest.mark.parametrize("stage", [0, 3])
def test_a_folder_whose_name_is_not_utf8(stage, kind, tmp_path, caplog):
    folder = kind(f"{tmp_path}/{ODD}")
    engine = make(stage)
    assert engine.load_checkpoint(folder) == (None, None)
    assert "caf\\xe9 has no checkpoint" in caplog.text
    step(engine)
    assert engine.save_checkpoint(folder, tag="one") and engine.save_checkpoint(folder, tag=b"two", asynchronous=True)
    engine.wait_for_checkpoint()
    assert engine.save_16bit_model(folder, f"{ODD}.safetensors")
    assert {"one", "two", "latest", f"{ODD}.safetensors"} <= set(os.listdir(f"{tmp_path}/{ODD}"))
    expected = step(engine)
    again = make(stage)
    for tag in (None, "two", b"two"):
        path, _ = again.load_checkpoint(folder, tag)
        assert path == f"{tmp_path}/{ODD}/two"
    assert step(again) == expected


def test_a_checkpoint_without_frozen_parameters_in_such_a_folder(tmp_path, caplog):
    model = net()
    model[0].weight.requires_grad_(False)
    engine = make(model=model)
    step(engine)
    engine.save_checkpoint(f"{tmp_path}/{ODD}", exclude_frozen_parameters=True)
    engine.load_checkpoint(f"{tmp_path}/{ODD}")
    assert "caf\\xe9/global_step1 was saved without frozen parameters" in caplog.text


@pytest.mark.parametrize("stage", [0, 3])
def test_names_that_are_refused(stage, tmp_path):
    engine = make(stage)
    step(engine)
    calls = {"save_checkpoint": engine.save_checkpoint, "load_checkpoint": engine.load_checkpoint,
             "load_newest": engine.load_newest, "save_16bit_model": engine.save_16bit_model}
    for name, call in calls.items():
        with pytest.raises(UserError, match=rf"{name}\(\): the path .*/a\?b.* has a 0 byte"):
            call(f"{tmp_path}/a\0b")
        with pytest.raises(UserError, match=r"the path .*/a\?b.* has a 0 byte"):
            call(os.fsencode(tmp_path) + b"/a\0b")
        with pytest.raises(ValueError, match=rf"{name}\(\): the folder's name is empty"):
            call("")
        with pytest.raises(UserError, match=rf"{name}\(\): no file can have the name '/\\ud800'"):
            call("/\ud800")
        with pytest.raises(ValueError, match=rf"{name}\(\): expected the path of a folder or a file, not None"):
            call(None)
    assert not os.listdir(tmp_path)
    engine.save_checkpoint(tmp_path, tag="one")
    with pytest.raises(UserError, match=r"checkpoint tag \"caf\\xe9\": expected the name of a folder in UTF-8"):
        engine.save_checkpoint(tmp_path, tag=ODD)
    with pytest.raises(UserError, match=r"caf\\xe9.*"):
        engine.load_checkpoint(tmp_path, tag=ODD)
    with pytest.raises(UserError, match=r"one\?x has a 0 byte"):
        engine.load_checkpoint(tmp_path, tag="one\0x")
    with pytest.raises(UserError, match=r"m\?.safetensors has a 0 byte"):
        engine.save_16bit_model(tmp_path, "m\0.safetensors")
    with pytest.raises(UserError, match=r"caf\\xe9/file.*Not a directory"):  # the system's own refusal
        os.mkdir(f"{tmp_path}/{ODD}")
        pathlib.Path(f"{tmp_path}/{ODD}/file").touch()
        engine.save_checkpoint(f"{tmp_path}/{ODD}/file")
    with pytest.raises(UserError, match=r"client_state.*\\udce9"):
        engine.save_checkpoint(tmp_path, client_state={ODD: object()})


def test_errors_of_other_objects_with_such_names(tmp_path):
    """A config in such a folder is named in the errors about it."""
    folder = f"{tmp_path}/{ODD}"
    os.mkdir(folder)
    with open(f"{folder}/ds.json", "w", encoding="utf-8") as file:
        json.dump({"train_micro_batch_size_per_gpu": 2, "optimizzer": {}}, file)
    with pytest.raises(UserError, match=r"caf\\xe9/ds.json.*optimizzer"):
        zerorun.initialize(model=torch.nn.Linear(2, 2), config=f"{folder}/ds.json")
