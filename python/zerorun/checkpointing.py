"""zerorun.checkpointing, as deepspeed.checkpointing: recomputation of activations. It is torch's own, which recomputes
under the engine as everywhere, at every stage."""

import torch.utils.checkpoint as _torch_checkpoint

from .errors import not_offered

_is_configured = False


def checkpoint(function, *args):
    """Runs function(*args), keeps no activations, and runs it again in backward."""
    return _torch_checkpoint.checkpoint(function, *args, use_reentrant=False)


non_reentrant_checkpoint = checkpoint


def configure(mpu_, deepspeed_config=None, partition_activations=None, contiguous_checkpointing=None,
              num_checkpoints=None, checkpoint_in_cpu=None, synchronize=None, profile=None):
    """Accepts the settings that change nothing."""
    global _is_configured
    if mpu_ is not None or partition_activations or checkpoint_in_cpu or contiguous_checkpointing:
        raise not_offered("activation checkpointing with mpu, partition_activations, contiguous_checkpointing or "
                          "checkpoint_in_cpu", "leave these out; checkpoint() then recomputes on each rank")
    _is_configured = True


def is_configured():
    return _is_configured


def reset():
    """Has no effect."""
