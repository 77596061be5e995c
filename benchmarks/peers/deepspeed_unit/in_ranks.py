"""What the tests need in their ranks, the same for every engine; each rank imports it before the tests. On CPUs:

- They compare with DistributedDataParallel(device_ids=[rank]); torch refuses device_ids for a model on CPUs.
- They make tensors on get_accelerator().current_device(), which is an index of a GPU; on CPUs it is one that torch
  takes for no device.
- They gather a tensor without dimensions from each rank; Gloo does not.

And everywhere: where pytest.raises() sees no error, it raises one that the pool of ranks does not pass on, so the case would
seem to hang.
"""

import _pytest.raises
import torch

DDP = torch.nn.parallel.DistributedDataParallel
original_init = DDP.__init__
original_gather = torch.distributed.all_gather_into_tensor


def without_devices(self, module, device_ids=None, output_device=None, **options):
    if all(parameter.device.type == "cpu" for parameter in module.parameters()):
        device_ids = output_device = None
    original_init(self, module, device_ids=device_ids, output_device=output_device, **options)


def gather(output_tensor, input_tensor, *arguments, **options):
    return original_gather(output_tensor, torch.atleast_1d(input_tensor), *arguments, **options)


def fail(reason="", pytrace=True):
    raise AssertionError(reason)


DDP.__init__ = without_devices
_pytest.raises.fail = fail
torch.distributed.all_gather_into_tensor = gather
from deepspeed.accelerator import get_accelerator  # noqa: E402: takes torch's functions as they are now

if get_accelerator().device_name() == "cpu":
    type(get_accelerator()).current_device = lambda self: "cpu"
