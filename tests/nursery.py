"""A process that has imported what every rank imports, and forks the ranks: each saves seconds of imports.

In: requests over a socket: arguments, environment and folder of a rank as JSON, with the file for its output.
Out: a message for each birth and each end. A rank is the main program of its process: it leaves the loop
below, runs its module as `__main__`, and ends as any interpreter does, with its own hooks and code.
"""

from __future__ import annotations

import json
import os
import random
import runpy
import selectors
import signal
import socket
import sys
from pathlib import Path
from typing import Any

import torch._dynamo  # which the first update of any optimizer imports

from training_agent import guard, loop

IMPORTED = (torch.nn.parallel.DistributedDataParallel, guard, loop)
MOST = 1 << 20  # bytes of one request


def serve(wire: socket.socket) -> dict[str, Any]:
    """Fork a rank for each request; returns in the rank alone, with its request."""
    events = selectors.DefaultSelector()
    events.register(wire, selectors.EVENT_READ)
    while True:
        for key, _ in events.select():
            if key.fileobj is not wire:
                _report(wire, key.data)
                events.unregister(key.fd)
                os.close(key.fd)
                continue
            text, files, _, _ = socket.recv_fds(wire, MOST, 1)
            if not text:  # whoever asked is gone
                _end(k.data for k in events.get_map().values() if k.fileobj is not wire)
                os._exit(0)
            child = os.fork()
            if child == 0:
                events.close()
                wire.close()
                return {**json.loads(text), "output": files[0]}
            os.close(files[0])
            events.register(os.pidfd_open(child), selectors.EVENT_READ, child)
            wire.send(json.dumps({"born": child}).encode())


def _report(wire: socket.socket, pid: int) -> None:
    status = os.waitpid(pid, 0)[1]
    wire.send(json.dumps({"ended": pid, "code": os.waitstatus_to_exitcode(status)}).encode())


def _end(children: Any) -> None:
    for pid in children:
        os.kill(pid, signal.SIGKILL)


def become(request: dict[str, Any]) -> str:
    """Output, environment, folder and arguments of the rank; its module."""
    for stream in (sys.stdout, sys.stderr):
        stream.flush()
    os.dup2(request["output"], 1)
    os.dup2(request["output"], 2)
    os.close(request["output"])
    os.environ.clear()
    os.environ.update(request["env"])
    os.chdir(request["folder"])
    random.seed()  # a fresh interpreter does
    sys.path[0] = request["folder"]
    sys.argv = request["argv"]
    return sys.argv[0]


if __name__ == "__main__":
    threads = len(list(Path("/proc/self/task").iterdir()))
    if threads != 1:
        sys.exit(
            f"the nursery has {threads} threads: what one of them holds locked would stay locked in each rank"
        )
    asked = serve(socket.socket(fileno=int(sys.argv[1])))
    runpy.run_module(become(asked), run_name="__main__", alter_sys=True)
