"""Records how bitsandbytes encodes numbers in 8 bits on CPUs, for tests/device/moment_codes_test.cpp.

  python3 record_codes.py >tests/device/data/bitsandbytes_codes.txt     # with bitsandbytes 0.50.2

Lines: the values of the code book, as bits of float32; then, for each block of 256 numbers, what it holds ("signed" or
"unsigned"), its largest magnitude and its codes, as hexadecimal digits. The test draws the same numbers.
"""

import struct

import torch
from bitsandbytes import functional

BLOCKS = 8


def bits(value):
    return struct.pack(">f", value).hex()


def numbers(block, signed):
    """256 numbers of many magnitudes: of 24 random bits, times a power of two. All are exact in float32."""
    state, found = 12345 + block, []
    for _ in range(256):
        state = (state * 6364136223846793005 + 1442695040888963407) % 2**64
        value = (state >> 40) * 2.0 ** -(24 + (state >> 34) % 16)
        found.append(-value if signed and state >> 33 & 1 else value)
    if signed and max(found) < -min(found):  # the largest magnitude is positive: docs say why
        found = [-value for value in found]
    return torch.tensor(found, dtype=torch.float32)


for signed in (True, False):
    name = "signed" if signed else "unsigned"
    code = functional.create_dynamic_map(signed=signed)
    print(name, *(bits(value) for value in code.tolist()))
    for block in range(BLOCKS):
        # In float64, as its CPU kernels of float32 look only at the upper 16 bits of a number.
        codes, scales = torch.ops.bitsandbytes.quantize_blockwise(numbers(block, signed).double(), code, 256)
        print(name, bits(scales.item()), bytes(codes.tolist()).hex())
