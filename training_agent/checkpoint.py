"""Checkpoints that are complete or visibly not, and that are moved aside, never deleted, when in doubt.

The training loop saves on rank 0 and loads on every rank; the guard asks for the newest one before a suspect
window and marks the ones inside it. `step-<n>/` holds `state.pt` and, written last, `manifest.json`.
"""

from __future__ import annotations

import hashlib
import json
import re
import secrets
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from .errors import CheckpointError
from .shared_files import fsync_file, fsync_folder, write_atomic

MANIFEST = "manifest.json"
STATE = "state.pt"
_NAME = re.compile(r"^step-(\d+)(?:\.(doubtful|partial|replaced)-([0-9a-f]+))?$")
_CHUNK_BYTES = 1 << 20


@dataclass(frozen=True, slots=True)
class CheckpointInfo:
    """One folder of the store. `reason` says why it is not to be resumed from, None for a sound one."""

    step: int
    path: Path
    complete: bool
    doubtful: bool = False
    reason: str | None = None
    world_size: int | None = None  # that saved it


class CheckpointStore:
    """All checkpoints of one job in one folder.

    Parameters
    ----------
    folder: on the job's shared file system.
    world_size: ranks of the job, recorded with each checkpoint.
    """

    def __init__(self, folder: Path, world_size: int) -> None:
        self.folder = Path(folder)
        self.world_size = world_size

    def save(self, step: int, state: Mapping[str, Any], manifest: Mapping[str, Any]) -> CheckpointInfo:
        """Write one checkpoint, on rank 0 only; a kill at any moment leaves the older ones untouched.

        Parameters
        ----------
        step: updates applied so far.
        state: what `torch.save` writes and `torch.load(weights_only=True)` reads back.
        manifest: `guard.manifest()`, plain JSON.

        Raises
        ------
        OSError: disk full or no permission; what was written stands beside as `step-<n>.partial-...`.
        CheckpointError: the state holds objects that could not be loaded again.
        """
        import torch

        target = self.folder / f"step-{step}"
        partial = self.folder / f"step-{step}.partial-{secrets.token_hex(4)}"
        partial.mkdir(parents=True)
        torch.save(dict(state), partial / STATE)
        _require_readable(partial / STATE)
        fsync_file(partial / STATE)
        files = {STATE: {"sha256": _sha256(partial / STATE), "bytes": (partial / STATE).stat().st_size}}
        record = {
            "format": 1,
            "step": step,
            "world_size": self.world_size,
            "files": files,
            "sdc": dict(manifest),
        }
        write_atomic(
            partial / MANIFEST, json.dumps(record, sort_keys=True, indent=1, allow_nan=False).encode()
        )
        if target.exists():
            target.rename(_free_name(target, "replaced"))
        partial.rename(target)
        fsync_folder(self.folder)
        return _inspect(target, step, None)

    def list(self) -> tuple[CheckpointInfo, ...]:
        """All checkpoints by step (as numbers: 9900 before 10000), partial and doubtful ones included."""
        if not self.folder.is_dir():
            return ()
        found = []
        for path in self.folder.iterdir():
            match = _NAME.match(path.name)
            if match and path.is_dir():
                found.append(_inspect(path, int(match[1]), match[2]))
        return tuple(sorted(found, key=lambda c: (c.step, c.path.name)))

    def newest(self, before: int | None = None) -> CheckpointInfo | None:
        """Newest complete checkpoint that is not doubtful, with step < `before` when that is given."""
        sound = [c for c in self.list() if c.complete and not c.doubtful]
        return next((c for c in reversed(sound) if before is None or c.step < before), None)

    def resume(self) -> CheckpointInfo | None:
        """Return the checkpoint to start from, or None for a start from scratch.

        Raises
        ------
        CheckpointError: only doubtful ones are left; a person decides.
        """
        newest = self.newest()
        if newest is None:
            doubtful = [c.path.name for c in self.list() if c.doubtful]
            if doubtful:
                raise CheckpointError(
                    f"No checkpoint in {self.folder} is from before the suspect window; left are "
                    f"{', '.join(doubtful)}. Ask a human: bring back an older one as step-<n>, rename one "
                    "that was judged sound back to step-<n>, or start over in an empty folder."
                )
        return newest

    def load(self, info: CheckpointInfo) -> tuple[dict[str, Any], dict[str, Any]]:
        """Read a checkpoint back, on the CPU, after comparing every file with its SHA-256.

        Returns
        -------
        The state and the guard's manifest, for `guard.after_load`.

        Raises
        ------
        CheckpointError: incomplete, damaged or changed since it was written.
        """
        import torch

        if not info.complete:
            raise CheckpointError(f"Checkpoint {info.path} cannot be loaded: {info.reason}.")
        record = _read_manifest(info.path)
        for name, expected in record["files"].items():
            if _sha256(info.path / name) != expected["sha256"]:
                raise CheckpointError(
                    f"Checkpoint file {info.path / name} is not what was written: its SHA-256 differs from "
                    "the manifest's. Move the folder away to resume from an older one."
                )
        try:
            state = torch.load(info.path / STATE, map_location="cpu", weights_only=True)
        except Exception as e:  # torch raises many kinds; all mean the same to the reader
            raise CheckpointError(f"Checkpoint file {info.path / STATE} cannot be read: {e}") from e
        return state, record["sdc"]

    def mark_doubtful(self, first_step: int) -> tuple[Path, ...]:
        """Rename every checkpoint of `first_step` or later to `step-<n>.doubtful-<k>`; nothing is deleted."""
        moved = []
        for info in self.list():
            if info.step >= first_step and info.path.name == f"step-{info.step}":
                aside = _free_name(info.path, "doubtful")
                info.path.rename(aside)
                moved.append(aside)
        if moved:
            fsync_folder(self.folder)
        return tuple(moved)


def _inspect(path: Path, step: int, kind: str | None) -> CheckpointInfo:
    if kind == "partial":
        return CheckpointInfo(step, path, complete=False, reason="its save was interrupted")
    doubtful = kind is not None
    why = {"doubtful": "inside a suspect window", "replaced": "saved again later"}.get(kind or "")
    try:
        record = _read_manifest(path)
        if record["step"] != step:
            raise CheckpointError(f"its manifest is of step {record['step']}")
        for name, expected in record["files"].items():
            if (path / name).stat().st_size != expected["bytes"]:
                raise CheckpointError(f"{name} has not the length that the manifest gives")
    except (CheckpointError, OSError) as e:
        return CheckpointInfo(step, path, complete=False, doubtful=doubtful, reason=str(e))
    return CheckpointInfo(step, path, True, doubtful, why, record["world_size"])


def _read_manifest(path: Path) -> dict[str, Any]:
    try:
        record = json.loads((path / MANIFEST).read_bytes())
        sound = (
            type(record["step"]) is int
            and type(record["world_size"]) is int
            and isinstance(record["sdc"], dict)
            and STATE in record["files"]
            and all(Path(name).name == name for name in record["files"])  # nothing outside the folder
            and all(type(f["sha256"]) is str and type(f["bytes"]) is int for f in record["files"].values())
        )
    except FileNotFoundError:
        raise CheckpointError("it has no manifest, which is written last") from None
    except (ValueError, KeyError, TypeError, AttributeError) as e:
        raise CheckpointError(f"its manifest is damaged ({e})") from None
    if not sound:
        raise CheckpointError("its manifest is damaged")
    return record  # type: ignore[no-any-return]


def _require_readable(path: Path) -> None:
    """Find out at the save, not after a fault, that a state cannot be loaded; reads no tensor data (mmap)."""
    import torch

    try:
        torch.load(path, map_location="cpu", weights_only=True, mmap=True)
    except Exception as e:
        raise CheckpointError(
            "The state to save holds more than tensors, numbers, strings and containers of them, so it could "
            f"not be loaded again safely; convert it first (NumPy arrays to tensors, say): {e}"
        ) from e


def _free_name(path: Path, kind: str) -> Path:
    n = 1
    while path.with_name(f"{path.name}.{kind}-{n}").exists():
        n += 1
    return path.with_name(f"{path.name}.{kind}-{n}")


def _sha256(path: Path) -> str:
    digest = hashlib.sha256()
    with path.open("rb") as f:
        while chunk := f.read(_CHUNK_BYTES):
            digest.update(chunk)
    return digest.hexdigest()
