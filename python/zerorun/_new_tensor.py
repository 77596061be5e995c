"""torch.Tensor.new_tensor() for parameters of an engine or of zero.Init: torch derives the device from their dispatch keys, and
does not know one of them. torch.nn.init.trunc_normal_() calls it from torch 2.15 on."""

import torch

from . import _core

_torchs = torch.Tensor.new_tensor


def _new_tensor(self, data, **options):
    try:
        return _torchs(self, data, **options)
    except RuntimeError:
        if not _core.lies_in_engine(self):
            raise
    given = {name: value for name, value in options.items() if value is not None}
    return torch.tensor(data, **{"dtype": self.dtype, "device": self.device, **given})


torch.Tensor.new_tensor = _new_tensor
