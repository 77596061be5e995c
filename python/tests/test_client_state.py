"""client_state and the states of schedulers come back as they were saved."""

import argparse
import collections
import copy
import enum
import json
import random

import numpy
import pytest
import safetensors.torch
import torch
import zerorun
from small import make, net, step

STATES = {
    "plain": {"epoch": 3, "best": 0.25, "name": "run", "list": [1, {"a": None}], "flag": True},
    "keys": {"loss_of_epoch": {0: 1.5, (1, "a"): 0.5}, "tagged": {"__zerorun__": [1, 2]}},
    "numbers": {"best": float("inf"), "worst": float("-inf"), "large": 2**70, "zero": -0.0, "z": 1 - 2j},
    "random": {"python": random.getstate(), "numpy": numpy.random.RandomState(3).get_state()},
    "collections": {"t": (1, (2,)), "s": {1, 2}, "f": frozenset("ab"), "c": collections.Counter("aab"), "b": b"\x00\xff",
                    "o": collections.OrderedDict([("z", 1), ("a", 2)])},
    "torch": {"ema": torch.randn(3, 2).t(), "half": torch.ones(2, dtype=torch.bfloat16), "one": torch.tensor(3),
              "none": torch.empty(0, 4), "rng": torch.get_rng_state(), "dtype": torch.float16, "size": torch.Size([2, 3])},
    "numpy": {"array": numpy.arange(6.0).reshape(2, 3), "scalar": numpy.float32(0.1), "flag": numpy.bool_(True)},
    "order": {"z": 1, "a": {"y": 1, "b": 2}, "m": [{"d": 1, "c": 2}]},
    "text": {"empty": numpy.str_(""), "some": numpy.str_("ab"), "file": "a\udcff", "args": argparse.Namespace(lr=0.1, layers=(2, 3))},
}


CYCLE = []
CYCLE.append(CYCLE)


def same(a, b):
    if type(a) is not type(b):
        return False
    if isinstance(a, dict):
        return same(list(a), list(b)) and all(same(a[k], b[k]) for k in a)
    if isinstance(a, (list, tuple)):
        return len(a) == len(b) and all(map(same, a, b))
    if isinstance(a, torch.Tensor):
        return a.dtype == b.dtype and torch.equal(a, b)
    if isinstance(a, (numpy.ndarray, numpy.generic)):
        return a.dtype == b.dtype and numpy.array_equal(a, b)
    if isinstance(a, (set, frozenset)):
        return a == b
    return repr(a) == repr(b)


def test_what_is_saved_comes_back(tmp_path):
    engine = make(2)
    step(engine)
    for name, state in STATES.items():
        engine.save_checkpoint(tmp_path, tag=name, client_state=state)
        assert same(engine.load_checkpoint(tmp_path, tag=name)[1], state), name
    random.setstate(engine.load_checkpoint(tmp_path, tag="random")[1]["python"])
    assert not same({"a": (1,)}, {"a": [1]}) and not same({"a": torch.ones(2)}, {"a": torch.zeros(2)})


def test_plain_values_stay_readable(tmp_path):
    text, tensors = zerorun.client_state.write(STATES["plain"])
    assert json.loads(text) == STATES["plain"] == zerorun.client_state.read(text, tensors) and not tensors


def test_tensors_are_in_a_file_of_their_own(tmp_path):
    engine = make(3)
    step(engine)
    ema = {name: parameter.detach().clone() for name, parameter in engine.module.named_parameters()}
    wide = torch.randn(3, dtype=torch.complex128)
    state = {"ema": ema, "large": torch.arange(500_000), "wide": wide, "names": numpy.array(["a", "bc"]), 1: {"1": torch.ones(1)},
             "1": {"1": torch.zeros(1)}, "big": numpy.arange(3, dtype=">i4"), "fixed": numpy.broadcast_to(numpy.float32(2), (2, 2)),
             "conj": wide[:2].to(torch.complex64).conj(), "parameter": engine.module[0].weight}
    engine.save_checkpoint(tmp_path, client_state=state, asynchronous=True)
    kept = copy.deepcopy({**state, "parameter": None, "ema": ema})
    ema["0.weight"].zero_()  # the checkpoint has the values of the call
    engine.wait_for_checkpoint()
    folder = tmp_path / "global_step1"
    manifest = json.loads((folder / "manifest.json").read_text())
    assert len(json.dumps(manifest["client_state"])) < 4000
    facts = manifest["files"]["client_state.safetensors"]
    assert facts["ranges"] == [] and facts["bytes"] == (folder / "client_state.safetensors").stat().st_size
    tensors = safetensors.torch.load_file(folder / "client_state.safetensors")
    assert torch.equal(tensors["['large']"], state["large"]) and tensors["['ema']['0.weight']"].shape == (16, 6)
    read = make(0).load_checkpoint(tmp_path)[1]
    assert torch.equal(read.pop("parameter"), engine.module[0].weight)
    kept.pop("parameter")
    assert same(read, kept)
    read["fixed"] += 1
    read["ema"]["0.weight"] += 1
    engine.save_checkpoint(tmp_path, client_state={"step": 1})  # the tag without tensors replaces the one with them
    assert not (folder / "client_state.safetensors").exists()


def test_checkpoints_with_tensors_as_text_are_read():
    """As the version before wrote them."""
    text = json.dumps({
        "t": {"__zerorun__": ["tensor", ["float32", [2, 1], "AACAPwAAAEA="]]},
        "e": {"__zerorun__": ["tensor", ["int64", [0, 4], ""]]},
        "n": {"__zerorun__": ["numpy", ["<i4", [2], "AQAAAAIAAAA="]]}, "z": {"__zerorun__": ["numpy", ["<f8", [0], ""]]},
        "s": {"__zerorun__": ["numpy scalar", ["<f4", [], "AACAPw=="]]},
        "c": {"__zerorun__": ["Counter", [[2, 1]]]}, "a": {"__zerorun__": ["Namespace", [["lr", {"__zerorun__": ["tuple", [1]]}]]]}})
    state = {"t": torch.tensor([[1.0], [2.0]]), "e": torch.empty(0, 4, dtype=torch.int64), "n": numpy.array([1, 2], dtype="i4"),
             "z": numpy.empty(0), "s": numpy.float32(1), "c": collections.Counter({2: 1}), "a": argparse.Namespace(lr=(1,))}
    assert same(zerorun.client_state.read(text, {}), state)


def test_subclasses_of_dict_come_back_as_dicts(tmp_path):
    class Settings(dict):
        pass

    engine = make(0)
    step(engine)
    state = {"d": collections.defaultdict(list, {"b": [1], "a": []}), "s": Settings(lr=1), "k": Settings({1: 2})}
    engine.save_checkpoint(tmp_path, client_state=state)
    assert same(engine.load_checkpoint(tmp_path)[1], {"d": {"b": [1], "a": []}, "s": {"lr": 1}, "k": {1: 2}})


def test_the_error_names_the_value(tmp_path):
    engine = make(0)
    for state, path in (({"args": argparse.Namespace(model=torch.nn.ReLU())}, r"client_state\['args'\]\.model"),
                        ({"a": [1, {"b": object()}]}, r"client_state\['a'\]\[1\]\['b'\] is a builtins.object"),
                        ({"s": torch.ones(2).to_sparse()}, r"client_state\['s'\] is a sparse"),
                        ({"n": numpy.array([{}])}, r"client_state\['n'\] is a numpy"),
                        ({"e": enum.IntEnum("E", "A").A}, r"client_state\['e'\] is a .*\.E"),
                        ({"t": collections.namedtuple("N", "a")(1)}, r"client_state\['t'\] is a .*\.N"),
                        ({"c": [CYCLE]}, "client_state contains itself")):
        with pytest.raises(zerorun.UserError, match=path):
            engine.save_checkpoint(tmp_path, client_state=state)
    with pytest.raises(zerorun.UserError, match="newer version"):
        zerorun.client_state.read('{"__zerorun__": ["later", 1]}', {})
    with pytest.raises(zerorun.UserError, match="refers to the tensor x"):
        zerorun.client_state.read('{"__zerorun__": ["stored tensor", ["x", "float32", [1]]]}', {})


def test_a_resumed_scheduler(tmp_path):
    """The milestones of MultiStepLR are a Counter with numbers as keys."""
    from small import config, net

    def made():
        model = net()
        optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
        schedule = torch.optim.lr_scheduler.MultiStepLR(optimizer, [2, 4], gamma=0.1)
        plain = {name: value for name, value in config(1).items() if name != "optimizer"}
        return zerorun.initialize(model=model, optimizer=optimizer, lr_scheduler=schedule, config=plain)[0]

    engine = made()
    step(engine)
    engine.save_checkpoint(tmp_path)
    resumed = made()
    resumed.load_checkpoint(tmp_path)
    for _ in range(4):
        assert step(engine) == step(resumed)
        assert resumed.get_lr() == engine.get_lr()
    assert engine.get_lr() == [pytest.approx(0.01)]


def test_the_newest_whole_checkpoint_is_loaded(tmp_path):
    engine = make(2)
    assert engine.load_newest(tmp_path / "none") is None
    step(engine)
    engine.save_checkpoint(tmp_path, tag="first", client_state={"epoch": 1})
    expected = step(engine)
    engine.save_checkpoint(tmp_path, tag="second", client_state={"epoch": 2})
    assert make(2).load_newest(tmp_path) == (str(tmp_path / "second"), {"epoch": 2})
    damaged = next((tmp_path / "second").glob("*.safetensors"))
    damaged.write_bytes(damaged.read_bytes()[:-1])
    again = make(2)
    assert again.load_newest(tmp_path) == (str(tmp_path / "first"), {"epoch": 1})
    assert step(again) == expected and again.global_steps == 2


def test_a_checkpoint_without_frozen_parameters_says_so(tmp_path, caplog):
    def frozen_base():
        model = net()
        model[0].requires_grad_(False)
        return make(2, model)

    frozen_base().save_checkpoint(tmp_path, exclude_frozen_parameters=True)
    with caplog.at_level("WARNING", logger="zerorun"):
        frozen_base().load_checkpoint(tmp_path, load_module_strict=False)
        assert "frozen" not in caplog.text
        frozen_base().load_checkpoint(tmp_path)
    assert "without frozen parameters: 0.weight, 0.bias keep the values" in caplog.text
