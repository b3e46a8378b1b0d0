"""Which checkpoints may go. Pure; in: what the store lists, out: those to delete. Used by `checkpoint`.

Numbers are compared as numbers (huggingface/transformers#27138 deleted 10000 and kept 9900). Whatever the
count says, the newest one from before the last passed checks stays: a fault that the next audit finds began
after them at the earliest, and resuming needs a state from before.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Protocol


class Kept(Protocol):
    """What retention looks at."""

    @property
    def step(self) -> int: ...
    @property
    def complete(self) -> bool: ...
    @property
    def doubtful(self) -> bool: ...


def last_full_pass(manifest: Mapping[str, Any]) -> int | None:
    """Step up to which every check that ran had passed, as a guard's manifest says; None: none has."""
    passed = [manifest.get("last_audit_pass"), manifest.get("last_weight_check_pass")]
    steps = [p for p in passed if isinstance(p, int)]
    return min(steps) if steps else None


def superfluous(found: Sequence[Kept], keep_last: int, passed: int | None) -> tuple[Any, ...]:
    """Sound checkpoints beyond the newest `keep_last`, except one from before `passed`.

    Args:
        found: all of the store; partial and doubtful ones are never returned.
        passed: see `last_full_pass`, of the newest one; None keeps the oldest instead.
    """
    sound = sorted((c for c in found if c.complete and not c.doubtful), key=lambda c: c.step)
    kept = {c.step for c in sound[-keep_last:]}
    older = [c.step for c in sound if passed is not None and c.step < passed]
    kept |= {max(older)} if older else {c.step for c in sound[:1]}
    return tuple(c for c in sound if c.step not in kept)
