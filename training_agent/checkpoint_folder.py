"""One checkpoint's folder: its files, their hashes, its manifest, which is written last.

In: a folder of `checkpoint.CheckpointStore`. Out: what is in it and whether it is whole; nothing is changed.
Files may lie in sub-folders, as `torch.distributed.checkpoint` or a save function of the user's writes them.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any, Protocol

from .errors import CheckpointError
from .log_line import log_line
from .shared_files import fsync_file, fsync_folder, write_atomic

MANIFEST = "manifest.json"
_CHUNK_BYTES = 1 << 20
_SAID = 3  # of those that are passed over


@dataclass(frozen=True, slots=True)
class CheckpointInfo:
    """One folder of the store. `reason` says why it is not to be resumed from, None for a sound one."""

    step: int
    path: Path
    complete: bool
    doubtful: bool = False
    reason: str | None = None
    world_size: int | None = None  # that saved it
    manifest: Mapping[str, Any] | None = None  # the guard's, of a complete one


class Checkpoints(Protocol):
    """What a start and an alarm need of a job's checkpoints, whoever writes them."""

    folder: Path  # on the job's shared file system

    def newest(self, before: int | None = None) -> CheckpointInfo | None:
        """Newest complete one that is not doubtful, with step < `before` when that is given."""

    def mark_doubtful(self, first_step: int) -> tuple[Path, ...]:
        """Move every one of `first_step` or later aside; where they are now."""


def seal(folder: Path, step: int, world_size: int, manifest: Mapping[str, Any]) -> None:
    """Make every file durable, hash it, and write the manifest last.

    Raises:
        CheckpointError: there is nothing to seal.
        OSError: disk full or no permission.
    """
    files = {p.relative_to(folder).as_posix(): p for p in sorted(folder.rglob("*")) if p.is_file()}
    if not files:
        raise CheckpointError(f"The save function wrote no file into {folder}.")
    record = hashed(files, step, world_size, manifest)
    for inner in (p for p in folder.rglob("*") if p.is_dir()):
        fsync_folder(inner)
    write_atomic(folder / MANIFEST, record)


def hashed(files: Mapping[str, Path], step: int, world_size: int, manifest: Mapping[str, Any]) -> bytes:
    """Make `files` (by name inside the checkpoint) durable; the record of them, as JSON."""
    found = {}
    for name, path in files.items():
        fsync_file(path)
        found[name] = {"sha256": sha256(path), "bytes": path.stat().st_size}
    record = {"format": 1, "step": step, "world_size": world_size, "files": found, "sdc": dict(manifest)}
    return json.dumps(record, sort_keys=True, indent=1, allow_nan=False).encode()


def verify(info: CheckpointInfo) -> dict[str, Any]:
    """Compare every file with its SHA-256; the whole record.

    Raises:
        CheckpointError: incomplete, damaged or changed since it was written.
    """
    if not info.complete:
        raise CheckpointError(f"Checkpoint {info.path} cannot be loaded: {info.reason}.")
    record = read_manifest(info.path)
    if changed := changed_file(info.path, record):
        raise CheckpointError(
            f"Checkpoint file {changed} is not what was written: its SHA-256 differs from "
            "the manifest's. Move the folder away to resume from an older one."
        )
    return record


def changed_file(path: Path, record: Mapping[str, Any]) -> Path | None:
    """The first file of a checkpoint whose SHA-256 is not its record's; None: all are as written."""
    return next((path / n for n, f in record["files"].items() if sha256(path / n) != f["sha256"]), None)


def cut_file(path: Path, record: Mapping[str, Any]) -> str | None:
    """The name of the first file that has not its record's length; None: all have it.

    Raises:
        OSError: one is missing.
    """
    return next((n for n, f in record["files"].items() if (path / n).stat().st_size != f["bytes"]), None)


def newest_sound(found: Sequence[CheckpointInfo], before: int | None) -> CheckpointInfo | None:
    """The last complete one that is not doubtful, of those by step; below step `before` when it is given."""
    sound = [c for c in found if c.complete and not c.doubtful]
    return next((c for c in reversed(sound) if before is None or c.step < before), None)


def say_passed_over(found: Sequence[CheckpointInfo], chosen: CheckpointInfo | None) -> None:
    """One log line where a start goes further back than the folder suggests: which are left out, and why."""
    taken = 0 if chosen is None else chosen.step
    # Damaged records of libraries' checkpoints tell no step: 0.
    left = [c for c in found if c.reason is not None and (c.step > taken or not c.step)]
    if not left:
        return
    start = (
        "this start begins from scratch" if chosen is None else f"this start goes on from step {chosen.step}"
    )
    which = "; ".join(f"{c.path}: {c.reason}" for c in left[-_SAID:])
    more = f" (and {len(left) - _SAID} more)" if len(left) > _SAID else ""
    log_line("warning", message=f"{start} and passes over {which}{more}")


def inspect(path: Path, step: int, kind: str | None) -> CheckpointInfo:
    """What is in a folder; `kind` is the word in its name, None for a plain one."""
    if kind == "partial":
        return CheckpointInfo(step, path, complete=False, reason="its save was interrupted")
    doubtful = kind is not None
    why = {"doubtful": "inside a suspect window", "replaced": "saved again later"}.get(kind or "")
    try:
        record = read_manifest(path)
        if record["step"] != step:
            raise CheckpointError(f"its manifest is of step {record['step']}")
        if name := cut_file(path, record):
            raise CheckpointError(f"{name} has not the length that the manifest gives")
    except (CheckpointError, OSError) as e:
        return CheckpointInfo(step, path, complete=False, doubtful=doubtful, reason=str(e))
    return CheckpointInfo(step, path, True, doubtful, why, record["world_size"], record["sdc"])


def read_manifest(path: Path) -> dict[str, Any]:
    """The record of a checkpoint's folder.

    Raises:
        CheckpointError: missing or damaged.
    """
    try:
        return parsed((path / MANIFEST).read_bytes())
    except FileNotFoundError:
        raise CheckpointError("it has no manifest, which is written last") from None


def parsed(data: bytes) -> dict[str, Any]:
    """The record that `hashed` wrote.

    Raises:
        CheckpointError: damaged.
    """
    try:
        record = json.loads(data)
        sound = (
            type(record["step"]) is int
            and type(record["world_size"]) is int
            and isinstance(record["sdc"], dict)
            and bool(record["files"])
            and all(_inside(name) for name in record["files"])
            and all(type(f["sha256"]) is str and type(f["bytes"]) is int for f in record["files"].values())
        )
    except (ValueError, KeyError, TypeError, AttributeError) as e:
        raise CheckpointError(f"its manifest is damaged ({e})") from None
    if not sound:
        raise CheckpointError("its manifest is damaged")
    return record  # type: ignore[no-any-return]


def _inside(name: str) -> bool:
    """A plain relative path, or "." for a checkpoint that is one file: nothing outside may be named."""
    parts = PurePosixPath(name).parts
    return (bool(parts) or name == ".") and not PurePosixPath(name).is_absolute() and ".." not in parts


def sha256(path: Path) -> str:
    """Hexadecimal, of a file's content."""
    digest = hashlib.sha256()
    with path.open("rb") as f:
        while chunk := f.read(_CHUNK_BYTES):
            digest.update(chunk)
    return digest.hexdigest()
