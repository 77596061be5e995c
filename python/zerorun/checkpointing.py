"""zerorun.checkpointing, like deepspeed.checkpointing: recomputation of activations by torch.utils.checkpoint, at every
stage."""

import torch.utils.checkpoint as _torch_checkpoint

from .errors import not_supported

_is_configured = False


def checkpoint(function, *args):
    """Runs function(*args), keeps no activations, and runs it again in backward."""
    return _torch_checkpoint.checkpoint(function, *args, use_reentrant=False)


non_reentrant_checkpoint = checkpoint


def configure(mpu_, deepspeed_config=None, partition_activations=None, contiguous_checkpointing=None,
              num_checkpoints=None, checkpoint_in_cpu=None, synchronize=None, profile=None):
    """Accepts settings that have no effect; refuses those that would have one."""
    global _is_configured
    if mpu_ is not None or partition_activations or checkpoint_in_cpu or contiguous_checkpointing:
        raise not_supported("activation checkpointing with mpu, partition_activations, contiguous_checkpointing or "
                          "checkpoint_in_cpu", "leave these out; checkpoint() then recomputes on each rank")
    _is_configured = True


def is_configured():
    return _is_configured


def reset():
    """Has no effect."""
