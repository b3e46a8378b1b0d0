"""Starts one gloo group: one process and one log file per rank (a full pipe would block its rank)."""

from __future__ import annotations

import sys
import time
from contextlib import ExitStack
from pathlib import Path

from tests.ranks import start


def launch(
    module: str,
    ranks: int,
    folder: Path,
    *args: str,
    timeout: float,
    gpus: int = 2,
    show: bool = False,
    fresh: bool = False,
) -> None:
    """Run `python -m module folder *args` on every rank, `gpus` of them on a node, and wait.

    With `show` the lines of rank 0 that begin with "- " come on stderr as they are written.
    `fresh` as in `start`.

    Raises:
        RuntimeError: a rank failed or the time is over; with the end of the log of the first that failed.
    """
    logs = [folder / f"{rank}.log" for rank in range(ranks)]
    with ExitStack() as files:
        outputs = [files.enter_context(log.open("w")) for log in logs]
        processes = start(module, (str(folder), *args), outputs, gpus=gpus, env={}, fresh=fresh)
    deadline, failed, shown = time.monotonic() + timeout, None, 0
    try:
        while any(p.poll() is None for p in processes) and time.monotonic() < deadline:
            failed = next((r for r, p in enumerate(processes) if p.poll()), None)
            if failed is not None:
                break
            time.sleep(0.1)
            shown = _progress(logs[0], shown) if show else 0
        if show:
            _progress(logs[0], shown)
        failed = next((r for r, p in enumerate(processes) if p.poll() != 0), None)
    finally:
        for p in processes:
            p.kill()
            p.wait()
    if failed is not None:
        code = processes[failed].returncode
        text = logs[failed].read_text(errors="replace")[-4000:]
        raise RuntimeError(f"{module}: rank {failed} of {ranks} ended with {code}\n{text}")


def _progress(log: Path, shown: int) -> int:
    """Show the whole lines since byte `shown`; the byte to go on from."""
    lines = log.read_bytes()[shown:].splitlines(keepends=True)
    whole = [line for line in lines if line.endswith(b"\n")]
    sys.stderr.write(b"".join(line for line in whole if line.startswith(b"- ")).decode(errors="replace"))
    sys.stderr.flush()
    return shown + sum(map(len, whole))
