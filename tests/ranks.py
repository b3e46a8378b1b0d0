"""Starts the ranks of one gloo group as real processes; who waits for them, and how, is the caller's.

In: a module, its arguments, and one open file per rank for its output: files, not pipes, since a rank whose
pipe nobody reads would block on its log, and the others with it. Out: the running processes, by rank.
"""

from __future__ import annotations

import atexit
import functools
import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import IO, Any

ROOT = Path(__file__).resolve().parents[1]
NURSERIES = (
    2  # each hashes strings in its own way, as interpreters do: the order of a set differs between ranks
)
READ_AT_START = (
    "OMP_",
    "MKL_",
    "PYTHON",
    "TORCH",
    "LD_",
)  # of an interpreter, or of what the nursery imports


class Rank:
    """What a test needs of a child process, as `subprocess.Popen` has it."""

    def __init__(self, pid: int, nursery: Nursery) -> None:
        self.pid = pid
        self.returncode: int | None = None
        self._nursery = nursery

    def poll(self) -> int | None:
        """The exit code, minus the signal's number, or None while it runs."""
        self._nursery.hear(0.0)
        return self.returncode

    def wait(self, timeout: float | None = None) -> int:
        """Its exit code.

        Raises:
            subprocess.TimeoutExpired: it still runs after `timeout` seconds.
        """
        deadline = None if timeout is None else time.monotonic() + timeout
        while self.returncode is None:
            left = None if deadline is None else deadline - time.monotonic()
            if left is not None and left <= 0:
                raise subprocess.TimeoutExpired(f"rank with pid {self.pid}", timeout or 0.0)
            self._nursery.hear(left)
        return self.returncode

    def send_signal(self, number: int) -> None:
        """Unless it has ended."""
        if self.poll() is None:
            os.kill(self.pid, number)

    def kill(self) -> None:
        """SIGKILL."""
        self.send_signal(signal.SIGKILL)


class Nursery:
    """The process of `tests.nursery`, and the ranks that came from it."""

    def __init__(self) -> None:
        self._wire, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._ranks: dict[int, Rank] = {}
        self._born: Rank | None = None  # the newest
        with theirs:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "tests.nursery", str(theirs.fileno())],
                env={**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT)},
                cwd=ROOT,
                pass_fds=[theirs.fileno()],
            )
        atexit.register(self.close)

    def close(self) -> None:
        """End it, and the ranks that still run."""
        self._wire.close()
        self._process.wait()

    def bear(self, argv: Sequence[str], env: Mapping[str, str], output: IO[Any]) -> Rank:
        """A new rank that runs `python -m argv`, as far as it can tell."""
        request = {"argv": [*argv], "env": {**env}, "folder": str(ROOT)}
        socket.send_fds(self._wire, [json.dumps(request).encode()], [output.fileno()])
        self._born = None
        while self._born is None:
            self.hear(None)
        return self._born

    def hear(self, timeout: float | None) -> None:
        """Take in births and ends, at most `timeout` seconds for the first."""
        self._wire.settimeout(timeout)
        try:
            while True:
                text = self._wire.recv(1 << 16)
                if not text:
                    raise RuntimeError(f"tests.nursery ended with {self._process.wait()}")
                self._note(json.loads(text))
                self._wire.settimeout(0.0)
        except (BlockingIOError, TimeoutError):
            return

    def _note(self, message: dict[str, int]) -> None:
        if "born" in message:
            self._born = self._ranks[message["born"]] = Rank(message["born"], self)
        else:
            self._ranks.pop(message["ended"]).returncode = message["code"]


Process = Rank | subprocess.Popen[str]


@functools.cache
def _nursery(index: int) -> Nursery:
    return Nursery()


def start(
    module: str,
    args: Sequence[str],
    outputs: Sequence[IO[Any]],
    *,
    gpus: int,
    env: Mapping[str, str],
    fresh: bool = False,
) -> list[Process]:
    """`python -m module *args` for each of `outputs`, `gpus` ranks on a node, with `env` over the rest.

    Ranks are forked from a process that has the imports; `fresh` ones, and those with a variable that counts
    when an interpreter starts, are interpreters of their own.
    """
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    fresh = fresh or any(name.startswith(READ_AT_START) for name in env)
    processes: list[Process] = []
    for rank, output in enumerate(outputs):
        own = {
            "RANK": str(rank),
            "WORLD_SIZE": str(len(outputs)),
            "LOCAL_RANK": str(rank % gpus),
            "MASTER_ADDR": "127.0.0.1",
            "MASTER_PORT": str(port),
            "OMP_NUM_THREADS": "1",
            "PYTHONPATH": str(ROOT),
        }
        whole = {**os.environ, **own, **env}
        if fresh:
            processes.append(
                subprocess.Popen(
                    [sys.executable, "-m", module, *args],
                    env=whole,
                    cwd=ROOT,
                    stdout=output,
                    stderr=subprocess.STDOUT,
                    text=True,
                )
            )
        else:
            processes.append(_nursery(rank % NURSERIES).bear((module, *args), whole, output))
    return processes
