"""The processes of a program's ranks, which take turns of a few steps with other programs."""

import glob
import json
import os
import socket
import subprocess
import sys
import tempfile
import time


def free_port():
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return listener.getsockname()[1]


def pss_of(pid):
    """Proportional set size in bytes: each process is charged its share of a shared page."""
    try:
        with open(f"/proc/{pid}/smaps_rollup", encoding="ascii") as lines:
            return next(int(line.split()[1]) * 1024 for line in lines if line.startswith("Pss:"))
    except (OSError, StopIteration):
        return 0


class Job:
    """The ranks of a program, each with one thread. They read numbers of steps from standard input; rank 0 prints events as lines
    of JSON. `launcher`: a command that starts the ranks; else they are started here, each by a command of its host: `hosts` are the
    words in front of it. The first host's address is `address`."""

    def __init__(self, name, command, ranks, variables, launcher=None, hosts=((),), address="127.0.0.1"):
        self.name, self.port, self.begin = name, free_port(), time.perf_counter()
        shared = {**os.environ, "OMP_NUM_THREADS": "1", **variables}
        environments, on_host = [shared], ranks // len(hosts)
        if launcher is None:
            sizes = {"WORLD_SIZE": str(ranks), **{size: str(on_host) for size in ("LOCAL_WORLD_SIZE", "LOCAL_SIZE")}}
            place = {"MASTER_ADDR": address, "MASTER_PORT": str(self.port)}
            environments = [{**shared, **place, **sizes, "RANK": str(rank), "LOCAL_RANK": str(rank % on_host)} for rank in range(ranks)]
        self.errors = tempfile.TemporaryFile("w+")
        self.ranks = [
            subprocess.Popen(
                [*(launcher or hosts[rank // on_host]), *command],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE if rank == 0 else self.errors,
                stderr=self.errors,
                text=True,
                env=environment,
            )
            for rank, environment in enumerate(environments)
        ]

    def listen(self, event):
        """Returns the next event of this name, and skips other output."""
        for line in self.ranks[0].stdout:
            if line.startswith('{"event"') and (found := json.loads(line))["event"] == event:
                return found
        sys.exit(f"{self.name} has failed:\n{self.messages()[-4000:]}")

    def messages(self):
        self.errors.seek(0)
        return self.errors.read()

    def turn(self, steps):
        for rank in self.ranks:
            rank.stdin.write(f"{steps}\n")
            rank.stdin.flush()
        return self.listen("steps")

    def end(self):
        for rank in self.ranks:
            rank.stdin.close()
        self.ranks[0].stdout.read()
        for rank in self.ranks:
            rank.wait()
        for path in glob.glob(f"/dev/shm/deepspeed_allreduce_buffer_*_{self.port}_*"):
            os.unlink(path)  # DeepSpeed does not remove these 66 MiB per rank
