"""deepspeed.utils.groups without meshes: all ranks are one data-parallel group; every other group has one rank."""

import torch.distributed as _torch_distributed

from . import comm
from .errors import not_supported


def get_data_parallel_group():
    return _torch_distributed.group.WORLD


def get_data_parallel_world_size():
    return comm.get_world_size()


def get_data_parallel_rank():
    return comm.get_rank()


def get_data_parallel_group_ranks():
    return range(comm.get_world_size())


def get_model_parallel_world_size():
    return 1


def get_model_parallel_rank():
    return 0


get_tensor_model_parallel_world_size, get_tensor_model_parallel_rank = get_model_parallel_world_size, get_model_parallel_rank
get_sequence_parallel_world_size, get_sequence_parallel_rank = get_model_parallel_world_size, get_model_parallel_rank


def get_sequence_parallel_group():
    raise not_supported("a group of ranks that share sequences",
                        "leave sequence parallelism out: each rank computes whole sequences")


def get_model_parallel_group():
    raise not_supported("a group of ranks that share layers", "train at stage 3, which partitions every parameter over all ranks")


get_tensor_model_parallel_group = get_model_parallel_group


def initialize(ep_size=1, mpu=None):
    """Has no effect, for one rank in each expert-parallel group."""
    if ep_size != 1 or mpu is not None:
        raise not_supported("groups.initialize() with ep_size or mpu", "build experts as plain modules")
