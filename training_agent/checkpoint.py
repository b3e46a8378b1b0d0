"""Checkpoints that are complete or visibly not, and that are moved aside, never deleted, when in doubt.

The training loop saves on rank 0 and loads on every rank; the guard asks for the newest one before a suspect
window and marks the ones inside it. `step-<n>/` holds `state.pt` and, written last, `manifest.json`.
"""

from __future__ import annotations

import re
import secrets
import shutil
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from . import _bisecting
from .checkpoint_folder import MANIFEST, CheckpointInfo, inspect, newest_sound, say_passed_over, seal, verify
from .errors import CheckpointError
from .retention import last_full_pass, superfluous
from .shared_files import fsync_folder

__all__ = ["MANIFEST", "CheckpointInfo", "CheckpointStore"]

STATE = "state.pt"
_NAME = re.compile(r"^step-(\d+)(?:\.(doubtful|partial|replaced)-([0-9a-f]+))?$")


class CheckpointStore:
    """All checkpoints of one job in one folder.

    Parameters
    ----------
    folder: on the job's shared file system.
    world_size: ranks of the job, recorded with each checkpoint.
    keep_last: after each save delete sound ones beyond this many; None keeps all. One from before the last
        passed checks always stays (`retention`); doubtful and partial ones are never deleted.
    """

    def __init__(self, folder: Path, world_size: int, keep_last: int | None = None) -> None:
        if keep_last is not None and not (type(keep_last) is int and keep_last >= 1):
            raise ValueError(
                f"keep_last={keep_last!r}: a whole number, at least one checkpoint, or None for all"
            )
        self.folder = Path(folder)
        self.world_size = world_size
        self.keep_last = keep_last

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

        def write(folder: Path) -> None:
            torch.save(dict(state), folder / STATE)
            _require_readable(folder / STATE)

        return self.save_with(step, write, manifest)

    def save_with(
        self, step: int, write: Callable[[Path], object], manifest: Mapping[str, Any]
    ) -> CheckpointInfo:
        """Write one checkpoint by a save function of yours, on rank 0 only; otherwise as `save`.

        Parameters
        ----------
        write: gets an empty folder and puts whatever it likes into it, sub-folders included. What every rank
            writes a part of (`torch.distributed.checkpoint`) is saved by `checkpoint_together.save_together`.

        Raises
        ------
        OSError, CheckpointError: as `save`; and whatever `write` raises, with the folder left as partial.
        """
        partial = self.begin(step)
        write(partial)
        return self.complete(step, partial, manifest)

    def begin(self, step: int) -> Path:
        """An empty folder that is visibly no checkpoint yet; on rank 0."""
        partial = self.folder / f"step-{step}.partial-{secrets.token_hex(4)}"
        partial.mkdir(parents=True)
        return partial

    def complete(self, step: int, partial: Path, manifest: Mapping[str, Any]) -> CheckpointInfo:
        """Turn the folder of `begin` into the checkpoint of `step`, then let superfluous ones go."""
        if _bisecting.plan() is not None:
            shutil.rmtree(partial)
            return CheckpointInfo(step, partial, complete=False, reason="sdc bisect keeps none")
        target = self.folder / f"step-{step}"
        seal(partial, step, self.world_size, manifest)
        if target.exists():
            target.rename(_free_name(target, "replaced"))
        partial.rename(target)
        fsync_folder(self.folder)
        info = inspect(target, step, None)
        if self.keep_last is not None:
            for old in superfluous(self.list(), self.keep_last, last_full_pass(manifest)):
                _delete(old.path)
        return info

    def list(self) -> tuple[CheckpointInfo, ...]:
        """All checkpoints by step (as numbers: 9900 before 10000), partial and doubtful ones included."""
        if not self.folder.is_dir():
            return ()
        found = []
        for path in self.folder.iterdir():
            match = _NAME.match(path.name)
            if match and path.is_dir():
                found.append(inspect(path, int(match[1]), match[2]))
        return tuple(sorted(found, key=lambda c: (c.step, c.path.name)))

    def newest(self, before: int | None = None) -> CheckpointInfo | None:
        """Newest complete checkpoint that is not doubtful, with step < `before` when that is given."""
        return newest_sound(self.list(), before)

    def resume(self) -> CheckpointInfo | None:
        """Return the checkpoint to start from, or None for a start from scratch; under `sdc bisect` its own.

        Raises
        ------
        CheckpointError: only doubtful ones are left; a person decides.
        """
        bisecting = _bisecting.plan()
        if bisecting is not None:
            return inspect(Path(bisecting.start), bisecting.start_step, None) if bisecting.start else None
        found = self.list()
        newest = newest_sound(found, None)
        if newest is None:
            doubtful = [c.path.name for c in found if c.doubtful]
            if doubtful:
                raise CheckpointError(
                    f"No checkpoint in {self.folder} is from before the suspect window; left are "
                    f"{', '.join(doubtful)}. Ask a human: bring back an older one as step-<n>, rename one "
                    "that was judged sound back to step-<n>, or start over in an empty folder."
                )
        say_passed_over(found, newest)
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

        record = verify(info)
        if STATE not in record["files"]:
            raise CheckpointError(
                f"Checkpoint {info.path} was not written by save(): read it with verified() and a load of "
                "your own."
            )
        try:
            state = torch.load(info.path / STATE, map_location="cpu", weights_only=True)
        except Exception as e:  # torch raises many kinds; all mean the same to the reader
            raise CheckpointError(f"Checkpoint file {info.path / STATE} cannot be read: {e}") from e
        return state, record["sdc"]

    def verified(self, info: CheckpointInfo) -> tuple[Path, dict[str, Any]]:
        """Folder and guard's manifest of a checkpoint that is what was written; for loads of your own.

        Raises
        ------
        CheckpointError: incomplete, damaged or changed since it was written.
        """
        record = verify(info)
        return info.path, record["sdc"]

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


def _delete(path: Path) -> None:
    """Take a checkpoint away; killed half-way, what is left is visibly none."""
    going = path.with_name(f"{path.name}.partial-{secrets.token_hex(4)}")
    path.rename(going)
    shutil.rmtree(going)
