"""Weights, text and traces of tests/golden (its README.md says what they are)."""

import json
import os
import pathlib
import struct

import torch

SOURCE = pathlib.Path(os.environ["ZERORUN_SOURCE"])
DATA = SOURCE / "tests/golden/data"
SEQ = 32
TEXT_BYTES = 32768


def traces():
    return json.loads((DATA / "traces.json").read_text())


def text():
    return pathlib.Path("/usr/share/common-licenses/GPL-3").read_bytes()[:TEXT_BYTES]


def weights():
    raw = (DATA / "init_tiny_seed1234.safetensors").read_bytes()
    (size,) = struct.unpack("<Q", raw[:8])
    header, body = json.loads(raw[8:8 + size]), raw[8 + size:]
    return {name: torch.frombuffer(bytearray(body[slice(*entry["data_offsets"])]), dtype=torch.float32).view(entry["shape"])
            for name, entry in header.items() if name != "__metadata__"}


def batch(tokens, step, micro, rank, accumulation, world, micro_batch):
    rows = []
    for j in range(micro_batch):
        sample = ((step * accumulation + micro) * world + rank) * micro_batch + j
        offset = sample * SEQ % (TEXT_BYTES - SEQ)
        rows.append(list(tokens[offset:offset + SEQ]))
    return torch.tensor(rows)
