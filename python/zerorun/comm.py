"""zerorun.comm, like deepspeed.comm: torch.distributed's functions. Their connections are separate from the engine's.

init_distributed() joins torch.distributed on a port of its own, since the job's port belongs to ZeroRun's ranks. It
works under `zerorun`, torchrun, mpirun, mpiexec and srun, and for one rank without any of them.
"""

import atexit
import ctypes
import ipaddress
import logging
import os
import socket
import sys
import threading
from datetime import timedelta

import torch.distributed as _torch_distributed
from torch.distributed import (  # noqa: F401
    P2POp, ProcessGroup, ReduceOp, all_gather, all_gather_into_tensor, all_gather_object, all_reduce, all_to_all,
    all_to_all_single, barrier, batch_isend_irecv, broadcast, broadcast_object_list, gather, get_process_group_ranks,
    irecv, isend, monitored_barrier, new_group, recv, reduce, reduce_scatter, reduce_scatter_tensor, scatter,
    scatter_object_list, send)

from ._core import UserError, variables_of_place

log = logging.getLogger("zerorun")

_LOOPBACK = "127.0.0.1"
_END_PATIENCE = 5.0  # seconds
_store = None


def _variable(name, otherwise):
    """The number in an environment variable. A variable that is empty counts as unset, as in the engine."""
    text = os.environ.get(name, "").strip()
    try:
        return type(otherwise)(text) if text else otherwise
    except ValueError:
        raise UserError(f"{name}={text}: expected a number") from None


def take_over_launcher():
    """Sets torchrun's variables on ranks that srun, mpirun or mpiexec started."""
    if os.environ.get("RANK"):
        return
    variables = variables_of_place()
    if variables["WORLD_SIZE"] != "1":
        for name, value in variables.items():
            if not os.environ.get(name):
                os.environ[name] = value


def is_initialized():
    return _torch_distributed.is_initialized()


def is_available():
    return _torch_distributed.is_available()


def _is_loopback(host):
    try:
        return host == "localhost" or ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def _addresses_to_listen(host):
    """Where rank 0's store should listen, the best first; "" is all interfaces."""
    ranks = _variable("WORLD_SIZE", 1)
    if _variable("LOCAL_WORLD_SIZE", 0) == ranks or _is_loopback(host):
        return [_LOOPBACK, host]
    try:
        found = {entry[4][0] for entry in socket.getaddrinfo(host, None, type=socket.SOCK_STREAM)}
    except OSError:
        found = set()
    # A name may mean another address elsewhere, and a router may pass connections on to this host.
    return [found.pop(), ""] if len(found) == 1 and not any(map(_is_loopback, found)) else [""]


def _listen(host):
    """Returns a socket that listens on a free port, and its address."""
    failure = None
    for address in _addresses_to_listen(host):
        try:
            both = not address and socket.has_dualstack_ipv6()
            family = socket.AF_INET6 if both or ":" in address else socket.AF_INET
            return socket.create_server((address, 0), family=family, dualstack_ipv6=both), address
        except OSError as error:
            failure = error
    raise UserError(f"rank 0 cannot listen for torch.distributed on {host} (MASTER_ADDR): {failure}")


def _meet(timeout):
    """Returns a store of torch.distributed for this job. Rank 0 sends its port to the other ranks through ZeroRun's own
    connection. The store believes whoever reaches it, so it listens only where ranks need it."""
    from ._core import Meeting

    rank, world_size = _variable("RANK", 0), _variable("WORLD_SIZE", 1)
    if world_size == 1:
        return _torch_distributed.HashStore(), rank, world_size
    host = os.environ["MASTER_ADDR"]
    meeting = Meeting()
    listening, address = _listen(host) if rank == 0 else (None, None)
    port = meeting.from_rank_0(listening.getsockname()[1] if listening else 0)
    if meeting.from_rank_0(int(address == _LOOPBACK)):
        host = _LOOPBACK
    descriptor = listening.detach() if listening else None  # the store closes it
    store = _torch_distributed.TCPStore(host, port, world_size, is_master=rank == 0, timeout=timeout,
                                        wait_for_workers=False, master_listen_fd=descriptor)
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
    timeout = timeout or timedelta(seconds=_variable("ZERORUN_TIMEOUT", 600.0))
    _store, own_rank, ranks = _meet(timeout)
    _torch_distributed.init_process_group(_backend(dist_backend), store=_store, rank=own_rank, world_size=ranks,
                                          timeout=timeout)
    os.register_at_fork(after_in_child=_keep_what_the_parent_owns)
    _end_before_the_interpreter()


def _end_before_the_interpreter():
    """Ends the process group when the program has ended. Otherwise a thread of Gloo that frees a Python object after the
    interpreter's end aborts the process, and NCCL's group warns that nobody has ended it. A thread ends the group, because a
    collective may be under way that never completes; Python 3.12 starts no thread at the end."""
    asked, done, owner = threading.Event(), threading.Event(), os.getpid()

    def end():
        asked.wait()
        try:
            _torch_distributed.destroy_process_group()
        finally:
            done.set()

    def ask():
        has_failed = hasattr(sys, "last_value")  # other ranks may wait for this one, whose end tells them
        if os.getpid() == owner and is_initialized() and not has_failed:
            asked.set()
            done.wait(_END_PATIENCE)

    threading.Thread(target=end, daemon=True).start()
    atexit.register(ask)


def _keep_what_the_parent_owns():
    """Keeps a forked child from destroying its copies of the store and of process groups: their threads do not exist in the
    child, which would wait for them for ever when it ends."""
    for owned in (_store, *_torch_distributed.distributed_c10d._world.pg_map):
        ctypes.pythonapi.Py_IncRef(ctypes.py_object(owned))


def _backend(asked):
    import torch

    if torch.cuda.is_available() and os.environ.get("ZERORUN_DEVICE") != "cpu":
        return asked or "cpu:gloo,cuda:nccl"
    return "gloo"  # "nccl" of a program for GPUs too


def get_rank(group=None):
    return _torch_distributed.get_rank(group) if is_initialized() else _variable("RANK", 0)


def get_world_size(group=None):
    return _torch_distributed.get_world_size(group) if is_initialized() else _variable("WORLD_SIZE", 1)


def get_local_rank():
    return _variable("LOCAL_RANK", 0)


def destroy_process_group(group=None):
    return _torch_distributed.destroy_process_group(group)


def get_world_group():
    return _torch_distributed.group.WORLD


def get_all_ranks_from_group(group=None):
    return get_process_group_ranks(group)


def get_global_rank(group=None, group_rank=0):
    return group_rank if group is None else _torch_distributed.get_global_rank(group, group_rank)


def mpi_discovery(distributed_port=None, verbose=True):
    """Sets torchrun's variables on ranks that mpirun started, as init_distributed() does itself."""
    take_over_launcher()


def configure(deepspeed_config=None, enabled=None, prof_all=None, prof_ops=None, verbose=None, debug=None):
    """Has no effect but for a warning if a log of communication is asked for: it is recorded from initialize() on."""
    if enabled and not has_comm_data():
        _log_no_records("configure(enabled=True)")


def log_summary(show_straggler=False, return_dict=False):
    """Logs on rank 0 a table of the collectives of each engine whose config has comms_logger. `return_dict`: returns an empty dict,
    as the table is of all collectives and not only of those of this module."""
    if not has_comm_data():
        _log_no_records("log_summary()")
    for engine in _engines_that_log():
        engine.log_communication()
    return {} if return_dict else None


def _log_no_records(call):
    if get_rank() == 0:
        log.warning("deepspeed.comm.%s: no engine records its collectives: set \"comms_logger\": {\"enabled\": true} in the config",
                    call)


def _engines_that_log():
    from . import _registry

    return [engine for engine in _registry.living() if engine._config["logs_communication"]]


def has_comm_data():
    return bool(_engines_that_log())


def has_all_reduce_coalesced():
    return False


has_coalescing_manager = has_all_reduce_coalesced


def has_all_gather_into_tensor():
    return True


has_reduce_scatter_tensor = has_all_gather_into_tensor
inference_all_reduce = all_reduce
allgather_fn, reduce_scatter_fn = all_gather_into_tensor, reduce_scatter_tensor
