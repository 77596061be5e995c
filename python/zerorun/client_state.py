"""client_state as JSON that keeps what Python has. Values that JSON has too stay as they are; others become an object with
the one key "__zerorun__", which C++ programs read as JSON. Nothing is pickled."""

import argparse
import base64
import collections
import json
import math

import torch

from ._core import UserError

_TAG = "__zerorun__"


def write(state):
    """Returns the JSON of `state`. Raises UserError with the path of a value that cannot be kept."""
    try:
        return json.dumps(_encode(state, "client_state"), allow_nan=False)
    except RecursionError:
        raise UserError("save_checkpoint(): client_state contains itself, or is nested too deep: pass a flat one") from None


def read(text):
    """Returns the state whose JSON write() made; JSON of other programs as Python's json reads it."""
    return _decode(json.loads(text))


def _tagged(kind, value):
    return {_TAG: [kind, value]}


def _encode(value, path):
    kind = type(value)
    if value is None or kind is bool:
        return value
    if kind is str:
        return value if _is_text(value) else _tagged("text", _text_of(value.encode("utf-8", "surrogatepass")))
    if kind is int:
        return value if -(2**63) <= value < 2**63 else _tagged("int", str(value))
    if kind is float:
        return value if math.isfinite(value) else _tagged("float", repr(value))
    if kind is list:
        return [_encode(item, f"{path}[{index}]") for index, item in enumerate(value)]
    if isinstance(value, dict):
        name = kind.__name__ if kind in (collections.OrderedDict, collections.Counter) else "dict"
        if name == "dict" and all(type(key) is str and _is_text(key) for key in value) and _TAG not in value:
            return {key: _encode(item, f"{path}[{key!r}]") for key, item in value.items()}
        return _tagged(name, [[_encode(key, f"{path}: key {key!r}"), _encode(item, f"{path}[{key!r}]")]
                              for key, item in value.items()])
    for name, of in (("tuple", tuple), ("set", set), ("frozenset", frozenset)):
        if kind is of:
            return _tagged(name, [_encode(item, f"{path}[{index}]") for index, item in enumerate(value)])
    if kind is complex:
        return _tagged("complex", [_encode(value.real, path), _encode(value.imag, path)])
    if kind in (bytes, bytearray):
        return _tagged(kind.__name__, _text_of(value))
    if isinstance(value, torch.Tensor):
        return _encode_tensor(value, path)
    if kind in (torch.dtype, torch.device, torch.Size):
        return _tagged(kind.__name__, list(value) if kind is torch.Size else str(value))
    if kind is argparse.Namespace:
        return _tagged("Namespace", [[name, _encode(item, f"{path}.{name}")] for name, item in vars(value).items()])
    if kind.__module__ == "numpy":
        return _encode_numpy(value, path)
    raise UserError(f"save_checkpoint(): {path} is a {kind.__module__}.{kind.__qualname__}, which a checkpoint cannot keep: "
                    "pass numbers, text, bytes, lists, dicts, tuples, sets, tensors and numpy arrays (dataclasses.asdict() makes "
                    "a dict of a dataclass)")


def _is_text(value):
    """Whether the text has only characters that UTF-8 can express: no lone surrogates, which os.fsdecode() makes."""
    try:
        value.encode("utf-8")
    except UnicodeEncodeError:
        return False
    return True


def _encode_tensor(value, path):
    if value.layout != torch.strided or value.is_quantized or value.is_meta:
        raise UserError(f"save_checkpoint(): {path} is a sparse, quantised or meta tensor: pass a dense one")
    plain = value.detach().clone(memory_format=torch.contiguous_format).cpu().resolve_conj().resolve_neg()
    memory = plain.view(-1).view(torch.uint8).numpy() if plain.numel() else b""
    return _tagged("tensor", [str(plain.dtype).removeprefix("torch."), list(plain.shape), _text_of(bytes(memory))])


def _encode_numpy(value, path):
    import numpy

    if not isinstance(value, (numpy.ndarray, numpy.generic)) or value.dtype.hasobject or value.dtype.names:
        raise UserError(f"save_checkpoint(): {path} is a numpy {type(value).__name__} that holds more than numbers and text: "
                        "pass its parts")
    kind = "numpy" if isinstance(value, numpy.ndarray) else "numpy scalar"
    return _tagged(kind, [value.dtype.str, list(value.shape), _text_of(value.tobytes())])


def _text_of(data):
    return base64.b64encode(data).decode("ascii")


def _bytes_of(text):
    return base64.b64decode(text)


def _decode(value):
    if isinstance(value, list):
        return [_decode(item) for item in value]
    if not isinstance(value, dict):
        return value
    if set(value) != {_TAG}:
        return {key: _decode(item) for key, item in value.items()}
    kind, content = value[_TAG]
    if kind not in _DECODERS:
        raise UserError(f"load_checkpoint(): client_state has a value of kind {kind!r}, which this version does not know: the "
                        "checkpoint is of a newer version of zerorun")
    return _DECODERS[kind](content)


def _decode_pairs(pairs):
    return {_decode(key): _decode(item) for key, item in pairs}


def _decode_tensor(content):
    name, shape, text = content
    dtype = getattr(torch, name)
    data = bytearray(_bytes_of(text))
    return torch.frombuffer(data, dtype=torch.uint8).view(dtype).reshape(shape) if data else torch.empty(shape, dtype=dtype)


def _decode_numpy(content):
    import numpy

    dtype, shape, text = content
    return numpy.ndarray(shape, dtype, bytearray(_bytes_of(text)))  # frombuffer() takes no empty text or array


_DECODERS = {
    "int": int,
    "float": float,
    "text": lambda text: _bytes_of(text).decode("utf-8", "surrogatepass"),
    "dict": _decode_pairs,
    "OrderedDict": lambda pairs: collections.OrderedDict(_decode_pairs(pairs)),
    "Counter": lambda pairs: collections.Counter(_decode_pairs(pairs)),
    "tuple": lambda items: tuple(map(_decode, items)),
    "set": lambda items: set(map(_decode, items)),
    "frozenset": lambda items: frozenset(map(_decode, items)),
    "Namespace": lambda items: argparse.Namespace(**{name: _decode(item) for name, item in items}),
    "complex": lambda parts: complex(*map(_decode, parts)),
    "bytes": _bytes_of,
    "bytearray": lambda text: bytearray(_bytes_of(text)),
    "tensor": _decode_tensor,
    "dtype": lambda name: getattr(torch, name.removeprefix("torch.")),
    "device": torch.device,
    "Size": torch.Size,
    "numpy": _decode_numpy,
    "numpy scalar": lambda content: _decode_numpy(content)[()],
}
