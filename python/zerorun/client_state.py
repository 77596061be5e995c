"""client_state as JSON that keeps what Python has, and the tensors and numpy arrays of it by name. Values that JSON has too stay
as they are; others become an object with the one key "__zerorun__", which C++ programs read as JSON. In the place of a tensor
is its name. Nothing is pickled."""

import argparse
import base64
import collections
import json
import math

import torch

from ._core import UserError, lies_in_engine

_TAG = "__zerorun__"
# The dtypes of safetensors files. Tensors of others are stored as bytes.
_STORED = {torch.float64, torch.float32, torch.float16, torch.bfloat16, torch.float8_e4m3fn, torch.float8_e5m2, torch.complex64,
           torch.int64, torch.int32, torch.int16, torch.int8, torch.uint64, torch.uint32, torch.uint16, torch.uint8, torch.bool}


class _Tensors(dict):
    """Tensors by name. may_gather: whether parameters of an engine may be among them, which are gathered."""

    may_gather = True


def write(state, may_gather=True):
    """Returns the JSON of `state`, and the tensors to which it refers, by name. These share memory with those of `state`. Raises
    UserError with the path of a value that cannot be kept."""
    tensors = _Tensors()
    tensors.may_gather = may_gather
    try:
        return json.dumps(_encode(state, "client_state", tensors), allow_nan=False), tensors
    except RecursionError:
        raise UserError("save_checkpoint(): client_state contains itself, or is nested too deep: pass a flat one") from None


def read(text, tensors):
    """Returns the state of which write() made `text` and `tensors`; JSON of other programs as Python's json reads it."""
    return _decode(json.loads(text), tensors)


def _tagged(kind, value):
    return {_TAG: [kind, value]}


def _encode(value, path, tensors):
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
        return [_encode(item, f"{path}[{index}]", tensors) for index, item in enumerate(value)]
    if isinstance(value, dict):
        name = kind.__name__ if kind in (collections.OrderedDict, collections.Counter) else "dict"
        if name == "dict" and all(type(key) is str and _is_text(key) for key in value) and _TAG not in value:
            return {key: _encode(item, f"{path}[{key!r}]", tensors) for key, item in value.items()}
        return _tagged(name, [[_encode(key, f"{path}: key {key!r}", tensors), _encode(item, f"{path}[{key!r}]", tensors)]
                              for key, item in value.items()])
    for name, of in (("tuple", tuple), ("set", set), ("frozenset", frozenset)):
        if kind is of:
            return _tagged(name, [_encode(item, f"{path}[{index}]", tensors) for index, item in enumerate(value)])
    if kind is complex:
        return _tagged("complex", [_encode(value.real, path, tensors), _encode(value.imag, path, tensors)])
    if kind in (bytes, bytearray):
        return _tagged(kind.__name__, _text_of(value))
    if isinstance(value, torch.Tensor):
        return _encode_tensor(value, path, tensors)
    if kind in (torch.dtype, torch.device, torch.Size):
        return _tagged(kind.__name__, list(value) if kind is torch.Size else str(value))
    if kind is argparse.Namespace:
        return _tagged("Namespace", [[name, _encode(item, f"{path}.{name}", tensors)] for name, item in vars(value).items()])
    if kind.__module__ == "numpy":
        return _encode_numpy(value, path, tensors)
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


def _encode_tensor(value, path, tensors):
    if value.layout != torch.strided or value.is_quantized or value.is_meta:
        raise UserError(f"save_checkpoint(): {path} is a sparse, quantised or meta tensor: pass a dense one")
    plain = value.detach()
    if lies_in_engine(plain):
        if not tensors.may_gather:
            raise UserError(f"load_newest(): {path} lies in the memory of an engine: keep a clone() of it that all ranks make")
        plain = plain.clone()  # on all ranks: it may be a gather
    plain = plain.resolve_conj().resolve_neg().contiguous()
    return _tagged("stored tensor", [_add(tensors, path, plain), str(plain.dtype).removeprefix("torch."), list(plain.shape)])


def _encode_numpy(value, path, tensors):
    import numpy

    if not isinstance(value, (numpy.ndarray, numpy.generic)) or value.dtype.hasobject or value.dtype.names:
        raise UserError(f"save_checkpoint(): {path} is a numpy {type(value).__name__} that holds more than numbers and text: "
                        "pass its parts")
    content = [value.dtype.str, list(value.shape)]
    if not isinstance(value, numpy.ndarray):
        return _tagged("numpy scalar", [*content, _text_of(value.tobytes())])
    array = numpy.ascontiguousarray(value)
    if not array.flags.writeable:
        array = array.copy()  # torch takes no other
    data = torch.from_numpy(array.reshape(-1).view(numpy.uint8)) if value.nbytes else torch.empty(0, dtype=torch.uint8)
    dtype = getattr(torch, value.dtype.name, None) if value.dtype.isnative else None
    if dtype in _STORED:
        data = data.view(dtype).reshape(value.shape)
    return _tagged("stored numpy", [_add(tensors, path, data), *content])


def _add(tensors, path, value):
    """Adds the tensor under its path, or the like of it, and returns the name."""
    if value.dtype not in _STORED:
        value = value.reshape(-1).view(torch.uint8)
    path = name = path.removeprefix("client_state")
    while name in tensors:  # keys that print alike
        name = f"{path} {len(tensors)}"
    tensors[name] = value
    return name


def _text_of(data):
    return base64.b64encode(data).decode("ascii")


def _bytes_of(text):
    return base64.b64decode(text)


def _decode(value, tensors):
    if isinstance(value, list):
        return [_decode(item, tensors) for item in value]
    if not isinstance(value, dict):
        return value
    if set(value) != {_TAG}:
        return {key: _decode(item, tensors) for key, item in value.items()}
    kind, content = value[_TAG]
    if kind in _DECODERS:
        return _DECODERS[kind](content)
    if kind in _COLLECTIONS:
        return _COLLECTIONS[kind](_decode(content, tensors))
    if kind in _REFERENCES:
        name, *rest = content
        if name not in tensors:
            raise UserError(f"load_checkpoint(): client_state refers to the tensor {name}, which the checkpoint does not have")
        return _REFERENCES[kind](tensors[name], *rest)
    raise UserError(f"load_checkpoint(): client_state has a value of kind {kind!r}, which this version does not know: the "
                    "checkpoint is of a newer version of zerorun")


def _decode_tensor(content):
    """Checkpoints of earlier versions have tensors as text."""
    name, shape, text = content
    return _stored_tensor(torch.frombuffer(bytearray(_bytes_of(text)), dtype=torch.uint8) if text else torch.empty(0), name, shape)


def _stored_tensor(data, name, shape):
    dtype = getattr(torch, name)
    return data.reshape(-1).view(dtype).reshape(shape) if data.numel() else torch.empty(shape, dtype=dtype)


def _decode_numpy(content):
    import numpy

    dtype, shape, text = content
    return numpy.ndarray(shape, dtype, bytearray(_bytes_of(text)))  # frombuffer() takes no empty text or array


def _stored_numpy(data, dtype, shape):
    import numpy

    return numpy.ndarray(shape, dtype, data.reshape(-1).view(torch.uint8).numpy() if data.numel() else b"")


# By the kind of a value: from its content in JSON; from its content, which has been decoded; from the tensor that it names.
_DECODERS = {
    "int": int,
    "float": float,
    "text": lambda text: _bytes_of(text).decode("utf-8", "surrogatepass"),
    "bytes": _bytes_of,
    "bytearray": lambda text: bytearray(_bytes_of(text)),
    "tensor": _decode_tensor,
    "dtype": lambda name: getattr(torch, name.removeprefix("torch.")),
    "device": torch.device,
    "Size": torch.Size,
    "numpy": _decode_numpy,
    "numpy scalar": lambda content: _decode_numpy(content)[()],
}
_COLLECTIONS = {
    "dict": dict,
    "OrderedDict": collections.OrderedDict,
    "Counter": lambda pairs: collections.Counter(dict(pairs)),
    "tuple": tuple,
    "set": set,
    "frozenset": frozenset,
    "Namespace": lambda pairs: argparse.Namespace(**dict(pairs)),
    "complex": lambda parts: complex(*parts),
}
_REFERENCES = {"stored tensor": _stored_tensor, "stored numpy": _stored_numpy}
