"""Runs a program: on several ranks with the wheel's `zerorun`, torchrun or mpirun, or directly on one rank."""

import os
import pathlib
import socket
import subprocess
import sys

# Tests try all that they can, however long it takes: scripts/test_python --all.
ALL = bool(os.environ.get("ZERORUN_TEST_ALL"))
PROGRAMS = pathlib.Path(__file__).parent / "programs"
SOURCE = pathlib.Path(__file__).parents[2]
BUILD = pathlib.Path(os.environ.get("ZERORUN_BUILD", SOURCE / "build"))  # scripts/test_python


def environment(**more):
    result = {**os.environ, "ZERORUN_DEVICE": "cpu", "OMP_NUM_THREADS": "1", "ZERORUN_SOURCE": str(SOURCE), **more}
    result["PYTHONPATH"] = str(PROGRAMS)
    return result


def launcher(kind, ranks):
    if kind in ("zerorun", "zerorun as deepspeed"):
        more = ["--as-deepspeed"] if kind != "zerorun" else []
        return [str(pathlib.Path(sys.executable).parent / "zerorun"), "--num_gpus", str(ranks), *more]
    if kind == "torchrun":
        return [sys.executable, "-m", "torch.distributed.run", "--nproc_per_node", str(ranks), "--master_port",
                str(free_port())]
    if kind == "mpirun":
        return ["mpirun", "--allow-run-as-root", "--oversubscribe", "-np", str(ranks), sys.executable]
    raise ValueError(kind)


RESERVED = []


def free_port():
    """Returns a port that stays reserved: only a socket with SO_REUSEADDR, as torchrun's, can listen there."""
    reserved = socket.socket()
    reserved.bind(("", 0))
    reserved.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    RESERVED.append(reserved)
    return reserved.getsockname()[1]


def run_several(lists, **more):
    """Runs programs one after the other in the same ranks, each with its arguments, as starting ranks takes longer than most programs.
    `lists`: a program and its arguments each."""
    words = []
    for number, (program, *arguments) in enumerate(lists):
        words += ["--"] * (number > 0) + [PROGRAMS / program, *arguments]
    return run("several.py", *words, **more)


def run(program, *arguments, ranks=2, kind="zerorun", expect=0, timeout=240, options=(), **more):
    """Returns the program's output. `expect`: its exit code; None: any except 0. `options`: of the launcher."""
    command = [str(PROGRAMS / program), *map(str, arguments)]
    command = [*launcher(kind, ranks), *options, *command] if ranks > 1 else [sys.executable, *command]
    # Not here, where the folder zerorun would hide the package from `python -m`.
    done = subprocess.run(command, env=environment(**more), cwd=PROGRAMS, timeout=timeout, stdout=subprocess.PIPE,
                          stderr=subprocess.STDOUT, text=True, check=False)
    ok = done.returncode == expect if expect is not None else done.returncode != 0
    assert ok, f"exit code {done.returncode} of {command}\n{done.stdout[-6000:]}"
    return done.stdout
