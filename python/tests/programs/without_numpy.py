"""Trains, saves, loads and converts on two ranks where numpy is not installed, as after `pip install torch`."""

import sys

sys.modules["numpy"] = None  # importing it is an error

import torch  # noqa: E402
import zerorun  # noqa: E402
from small import make, step  # noqa: E402

folder = sys.argv[1]
zerorun.init_distributed()
for stage in (0, 3):
    engine = make(stage)
    step(engine)
    engine.save_checkpoint(f"{folder}/{stage}", client_state={"epoch": 1})
    expected = step(engine)
    again = make(stage)
    assert again.load_checkpoint(f"{folder}/{stage}")[1] == {"epoch": 1}
    assert step(again) == expected
    whole = zerorun.zero_to_fp32.get_fp32_state_dict_from_zero_checkpoint(f"{folder}/{stage}")
    assert {name: tuple(value.shape) for name, value in whole.items()} == {
        "0.weight": (16, 6), "0.bias": (16,), "2.weight": (3, 16), "2.bias": (3,)}
try:
    torch.ones(1).numpy()
except RuntimeError as error:
    print("without numpy:", error)
