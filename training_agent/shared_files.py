"""Files that must survive a kill or a power cut: written beside, fsynced, renamed, folder fsynced.

Used by spool, quarantine record, placement files and checkpoints.
"""

from __future__ import annotations

import os
import secrets
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


def write_atomic(path: Path, data: bytes) -> None:
    """Replace `path` by `data`; readers see the old or the new content, never a part, even after a crash.

    Creates missing folders. Raises OSError (disk full, no permission); the old content then stands.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    # The name is new each time, so that two ranks that write the same file never share a half-written one.
    beside = path.with_name(f".{path.name}.{secrets.token_hex(6)}.tmp")
    try:
        with beside.open("xb") as f:
            f.write(data)
            f.flush()
            os.fsync(f.fileno())
        beside.replace(path)
    except BaseException:
        beside.unlink(missing_ok=True)
        raise
    fsync_folder(path.parent)


@contextmanager
def alone(lock: Path, patience_s: float) -> Iterator[None]:
    """Run the block while nobody else holds `lock`, a file that only one can create, also over a network.

    After `patience_s` seconds it runs all the same: who held it died, and its file goes with ours.
    """
    lock.parent.mkdir(parents=True, exist_ok=True)
    deadline = time.monotonic() + patience_s
    while True:
        try:
            os.close(os.open(lock, os.O_CREAT | os.O_EXCL | os.O_WRONLY))
            break
        except FileExistsError:
            if time.monotonic() > deadline:
                break
            time.sleep(0.02)
    try:
        yield
    finally:
        lock.unlink(missing_ok=True)


def fsync_file(path: Path) -> None:
    """Wait until the content of `path` is on the disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def fsync_folder(folder: Path) -> None:
    """Make renames and new names inside `folder` durable."""
    fsync_file(folder)
