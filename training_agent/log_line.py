"""One JSON object per line on standard output, without prefix: what log shippers and people read.

The key "sdc" names the kind: alarm, holding, waiting, released, warning, peer_lost.
"""

from __future__ import annotations

import atexit
import json
import os
import sys
import threading
from datetime import datetime, timezone
from typing import Any


class _Writer:
    """Writes whole lines, one thread at a time, and none once the interpreter is on its way out.

    A daemon thread that ends inside a write takes the stream's own lock with it, and Python then aborts the
    process where it flushes the stream (SIGABRT, "could not acquire lock ... at interpreter shutdown").
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._over = False

    def write(self, line: str) -> None:
        if self._over:
            return
        with self._lock:
            if not self._over:  # it may have ended while this thread waited
                sys.stdout.write(line)
                sys.stdout.flush()

    def end(self) -> None:
        """Let the line in progress be finished, then keep every thread out for good."""
        self._over = True  # first: threads that wait for the lock must not write one after the other
        self._lock.acquire(timeout=5.0)


_writer = _Writer()
atexit.register(lambda: _writer.end())


def _new_writer() -> None:
    global _writer
    _writer = _Writer()  # in a forked child nobody would let the lock of another thread go


os.register_at_fork(after_in_child=_new_writer)


def utc_now() -> str:
    """Now, UTC, ISO 8601 with Z and milliseconds."""
    return datetime.now(timezone.utc).isoformat(timespec="milliseconds").replace("+00:00", "Z")


def log_line(kind: str, **fields: Any) -> None:
    """Write `{"sdc": kind, "time": ..., **fields}` as one line and flush it; a closed pipe is ignored."""
    text = json.dumps({"sdc": kind, "time": utc_now(), **fields}, separators=(",", ":"), default=str)
    try:
        _writer.write(text + "\n")  # one write, so that lines of several ranks do not mix
    except (OSError, ValueError):
        return  # nobody reads any more; the alarm stands in the spool
