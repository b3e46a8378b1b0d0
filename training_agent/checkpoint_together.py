"""A checkpoint that every rank writes a part of, such as `torch.distributed.checkpoint`'s. A collective.

In: the store, a save function that every rank calls with one folder. Out: a checkpoint with one manifest over
all ranks' files; or the same error on every rank, with the folder left as partial.

    save_together(store, step, lambda folder: dcp.save(state, checkpoint_id=folder), guard.manifest())
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch.distributed as dist

from .checkpoint import CheckpointStore
from .errors import CheckpointError


def save_together(
    store: CheckpointStore,
    step: int,
    write: Callable[[Path], object],
    manifest: Mapping[str, Any],
    group: dist.ProcessGroup | None = None,
) -> None:
    """Save on all ranks of `group`, each into the same folder of the shared file system.

    Raises
    ------
    CheckpointError: on every rank, when one of them could not write; the text names it.
    """
    first = dist.get_rank(group) == 0

    def begin() -> Path | None:
        return store.begin(step) if first else None

    folder = Path(agree(begin, group)[0])
    agree(lambda: write(folder), group)

    def complete() -> None:
        if first:
            store.complete(step, folder, manifest)

    agree(complete, group)


def agree(act: Callable[[], object], group: dist.ProcessGroup | None) -> list[Any]:
    """Act on every rank, then tell each other how it went: nobody goes on alone."""
    value, problem = None, ""
    try:
        value = act()
    except Exception as e:  # noqa: BLE001 - whatever a save function raises must end all ranks alike
        problem = f"{type(e).__name__}: {e}"
    answers: list[Any] = [None] * dist.get_world_size(group)
    dist.all_gather_object(answers, (str(value) if isinstance(value, Path) else None, problem), group=group)
    failed = [f"rank {r}: {why}" for r, (_, why) in enumerate(answers) if why]
    if failed:
        raise CheckpointError("The checkpoint was not completed; " + "; ".join(failed[:3]))
    return [v for v, _ in answers]
