"""Starts the ranks of one gloo group as real processes; who waits for them, and how, is the caller's.

In: a module, its arguments, and one open file per rank for its output: files, not pipes, since a rank whose
pipe nobody reads would block on its log, and the others with it. Out: the running processes, by rank.
"""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import IO, Any

ROOT = Path(__file__).resolve().parents[1]


def start(
    module: str, args: Sequence[str], outputs: Sequence[IO[Any]], *, gpus: int, env: Mapping[str, str]
) -> list[subprocess.Popen[str]]:
    """`python -m module *args` for each of `outputs`, `gpus` ranks on a node, with `env` over the rest."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    processes = []
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
        processes.append(
            subprocess.Popen(
                [sys.executable, "-m", module, *args],
                env={**os.environ, **own, **env},
                cwd=ROOT,
                stdout=output,
                stderr=subprocess.STDOUT,
                text=True,
            )
        )
    return processes
