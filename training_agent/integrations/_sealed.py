"""Checkpoints that a training library writes: one record beside each, and what an alarm does with them.

In: a file or folder that the library has written. Out: `<name>.sdc.json` beside it (hash of every file, step,
the guard's manifest), written last: a checkpoint without one was interrupted, or is not ours. Those of a
suspect window are renamed to `doubtful-<k>-<name>`, which no library takes for one of its own.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ..checkpoint_folder import (
    CheckpointInfo,
    changed_file,
    cut_file,
    hashed,
    newest_sound,
    parsed,
    say_passed_over,
)
from ..errors import CheckpointError
from ..shared_files import fsync_folder, write_atomic

SUFFIX = ".sdc.json"
_DOUBTFUL = re.compile(r"^doubtful-\d+-")


class SealedCheckpoints:
    """All sealed checkpoints of one folder, by the guard's step; rank 0 writes, every rank reads."""

    def __init__(self, folder: Path) -> None:
        self.folder = Path(folder)

    def unseal(self, path: Path) -> None:
        """`path` is about to be written (again): until it is sealed it counts as interrupted."""
        _record_of(path).unlink(missing_ok=True)

    def seal(self, path: Path, step: int, world_size: int, manifest: Mapping[str, Any]) -> None:
        """Make what was written durable, hash it, write the record; records of deleted ones go.

        Raises
        ------
        CheckpointError: the library wrote nothing there.
        OSError: disk full or no permission.
        """
        files = _files(path)
        if not files:
            raise CheckpointError(f"Nothing was written to {path}, so there is no checkpoint to keep.")
        record = hashed(files, step, world_size, manifest)
        if path.is_dir():
            fsync_folder(path)
        for old in self.folder.glob(f"*{SUFFIX}"):
            if not _checkpoint_of(old).exists():
                old.unlink(missing_ok=True)
        write_atomic(_record_of(path), record)

    def list(self) -> tuple[CheckpointInfo, ...]:
        """All with a record, by step; doubtful and damaged ones included."""
        found = []
        for record in self.folder.glob(f"*{SUFFIX}"):
            path = _checkpoint_of(record)
            if path.exists() and not path.is_symlink():
                found.append(_inspect(path))
        return tuple(sorted(found, key=lambda c: (c.step, c.path.name)))

    def newest(self, before: int | None = None) -> CheckpointInfo | None:
        """Newest complete one that is not doubtful, with step < `before` when that is given."""
        return newest_sound(self.list(), before)

    def resume(self) -> Path | None:
        """What to start from, its files compared with their hashes; None for a start from scratch.

        Raises
        ------
        CheckpointError: its files are not what was written, or only doubtful ones are left; a person decides.
        """
        found = self.list()
        newest = newest_sound(found, None)
        if newest is None:
            doubtful = [c.path.name for c in found if c.doubtful]
            if doubtful:
                raise CheckpointError(
                    f"No checkpoint in {self.folder} is from before the suspect window; left are "
                    f"{', '.join(doubtful)}. Ask a human: take the prefix from one that was judged sound and "
                    "from its record, or start over in an empty folder."
                )
        say_passed_over(found, newest)
        if newest is None:
            return None
        if changed := changed_file(newest.path, _read(newest.path)):
            raise CheckpointError(
                f"{changed} is not what was written: its SHA-256 differs from the "
                "record's. Move the checkpoint away to resume from an older one."
            )
        return newest.path

    def unknown(self, path: Path) -> bool:
        """Whether `path` has no record: interrupted, or written without the agent."""
        return not _record_of(path.resolve()).exists()

    def manifest(self, path: Path) -> dict[str, Any]:
        """The guard's manifest of the checkpoint that the library has loaded, for `guard.after_load`.

        Raises
        ------
        CheckpointError: no record, a damaged one, or it was moved aside.
        """
        path = path.resolve()  # Lightning's last.ckpt may be a link
        if _DOUBTFUL.match(path.name):
            raise CheckpointError(f"{path} is from a suspect window: resume from an older one.")
        manifest: dict[str, Any] = _read(path)["sdc"]
        return manifest

    def mark_doubtful(self, first_step: int) -> tuple[Path, ...]:
        """Rename every one of `first_step` or later, with its record; nothing is deleted."""
        moved = []
        for info in self.list():
            if info.step >= first_step and not info.doubtful:
                aside = _free_name(info.path)
                info.path.rename(aside)  # first: a record alone is no checkpoint
                _record_of(info.path).rename(_record_of(aside))
                moved.append(aside)
        if moved:
            fsync_folder(self.folder)
        return tuple(moved)


def _record_of(path: Path) -> Path:
    return path.with_name(path.name + SUFFIX)


def _checkpoint_of(record: Path) -> Path:
    return record.with_name(record.name.removesuffix(SUFFIX))


def _files(path: Path) -> dict[str, Path]:
    """Its files by their names inside it; "." is the checkpoint itself where that is one file."""
    files = sorted(path.rglob("*")) if path.is_dir() else [path]
    return {p.relative_to(path).as_posix(): p for p in files if p.is_file()}


def _free_name(path: Path) -> Path:
    n = 1
    while (aside := path.with_name(f"doubtful-{n}-{path.name}")).exists():
        n += 1
    return aside


def _inspect(path: Path) -> CheckpointInfo:
    doubtful = _DOUBTFUL.match(path.name) is not None
    try:
        record = _read(path)
        if name := cut_file(path, record):
            raise CheckpointError(f"{name} has not the length that its record gives")
    except (CheckpointError, OSError) as e:
        return CheckpointInfo(0, path, complete=False, doubtful=doubtful, reason=str(e))
    why = "inside a suspect window" if doubtful else None
    return CheckpointInfo(record["step"], path, True, doubtful, why, record["world_size"], record["sdc"])


def _read(path: Path) -> dict[str, Any]:
    try:
        return parsed(_record_of(path).read_bytes())
    except FileNotFoundError:
        raise CheckpointError(
            f"{path} has no record {_record_of(path).name}: its save was interrupted, or it was written "
            "without the agent. Start from the callback's resume(), or say adopt=True once."
        ) from None
    except CheckpointError as e:
        raise CheckpointError(f"{_record_of(path)} cannot be used: {e}") from None
