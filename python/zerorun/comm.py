"""zerorun.comm, like deepspeed.comm: torch.distributed's functions. Their connections are separate from the engine's.

init_distributed() joins torch.distributed on a port of its own, since the job's port belongs to ZeroRun's ranks. It
works under `zerorun`, torchrun, mpirun, mpiexec and srun, and for one rank without any of them.
"""

import os
import socket
from datetime import timedelta

import torch.distributed as _torch_distributed
from torch.distributed import (  # noqa: F401
    ReduceOp, all_gather, all_gather_object, all_reduce, barrier, broadcast, broadcast_object_list, gather,
    get_process_group_ranks, new_group, recv, reduce, reduce_scatter, scatter, send)

from ._core import variables_of_place

_store = None


def take_over_launcher():
    """Sets torchrun's variables on ranks that srun, mpirun or mpiexec started."""
    if "RANK" in os.environ:
        return
    variables = variables_of_place()
    if variables["WORLD_SIZE"] != "1":
        for name, value in variables.items():
            os.environ.setdefault(name, value)


def is_initialized():
    return _torch_distributed.is_initialized()


def is_available():
    return _torch_distributed.is_available()


def _free_port(host):
    with socket.socket() as listening:
        listening.bind((host, 0))
        return listening.getsockname()[1]


def _meet(timeout):
    """Returns a store of torch.distributed for this job. Rank 0 sends its port to the other ranks through ZeroRun's own
    connection."""
    from ._core import Meeting

    rank, world_size = int(os.environ.get("RANK", 0)), int(os.environ.get("WORLD_SIZE", 1))
    if world_size == 1:
        return _torch_distributed.HashStore(), rank, world_size
    host = os.environ["MASTER_ADDR"]
    meeting = Meeting()
    port = meeting.from_rank_0(_free_port("") if rank == 0 else 0)
    store = _torch_distributed.TCPStore(host, port, world_size, is_master=rank == 0, timeout=timeout,
                                        wait_for_workers=False)
    meeting.wait()
    return store, rank, world_size


def init_distributed(dist_backend=None, auto_mpi_discovery=True, distributed_port=None, verbose=True, timeout=None,
                     init_method=None, dist_init_required=None, config=None, rank=-1, world_size=-1):
    """Joins torch.distributed, unless the program has joined it already. Only dist_backend and timeout have an effect."""
    global _store
    if auto_mpi_discovery:
        take_over_launcher()
    if dist_init_required is False or _torch_distributed.is_initialized():
        return
    timeout = timeout or timedelta(seconds=float(os.environ.get("ZERORUN_TIMEOUT", 600)))
    _store, own_rank, ranks = _meet(timeout)
    _torch_distributed.init_process_group(_backend(dist_backend), store=_store, rank=own_rank, world_size=ranks,
                                          timeout=timeout)


def _backend(asked):
    import torch

    if torch.cuda.is_available() and os.environ.get("ZERORUN_DEVICE") != "cpu":
        return asked
    return "gloo"  # "nccl" of a program for GPUs too


def get_rank(group=None):
    return _torch_distributed.get_rank(group) if is_initialized() else int(os.environ.get("RANK", 0))


def get_world_size(group=None):
    return _torch_distributed.get_world_size(group) if is_initialized() else int(os.environ.get("WORLD_SIZE", 1))


def get_local_rank():
    return int(os.environ.get("LOCAL_RANK", 0))


def destroy_process_group(group=None):
    return _torch_distributed.destroy_process_group(group)
