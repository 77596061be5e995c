"""deepspeed.utils.groups. All ranks are one data-parallel group, unless the last engine has a mesh (docs/python.md); there is no
sequence or expert parallelism."""

import torch.distributed as _torch_distributed

from . import comm
from .errors import not_supported

_mesh = None  # sizes and coordinates of the last engine, if its mesh has several data groups


def follow(core):
    """Called when an engine is made: these functions describe its mesh."""
    global _mesh
    sizes = core.mesh_sizes()
    _mesh = (sizes, core.coordinates()) if sizes["data"] < core.world_size() else None


def _size(axis, without_mesh):
    return without_mesh if _mesh is None else _mesh[0][axis]


def _rank(axis, without_mesh):
    return without_mesh if _mesh is None else _mesh[1][axis]


def get_data_parallel_group():
    if _mesh is not None:
        raise not_supported("a torch process group of a mesh's data ranks", "make those of all data groups with "
                            "torch.distributed.new_group(), on all ranks")
    return _torch_distributed.group.WORLD


def get_data_parallel_world_size():
    return _size("data", comm.get_world_size())


def get_data_parallel_rank():
    return _rank("data", comm.get_rank())


def get_data_parallel_group_ranks():
    if _mesh is None:
        return range(comm.get_world_size())
    sizes, own = _mesh
    first = own["pipeline"] * sizes["data"] * sizes["tensor"] + own["tensor"]
    return range(first, first + sizes["data"] * sizes["tensor"], sizes["tensor"])


def get_model_parallel_world_size():
    return _size("tensor", 1)


def get_model_parallel_rank():
    return _rank("tensor", 0)


get_tensor_model_parallel_world_size, get_tensor_model_parallel_rank = get_model_parallel_world_size, get_model_parallel_rank


def get_sequence_parallel_world_size():
    return 1


def get_sequence_parallel_rank():
    return 0


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
