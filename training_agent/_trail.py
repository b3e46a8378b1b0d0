"""What the weights were, step by step: one short digest at each passed weight check, and at the alarm.

In: the digest tables that check 3 computes anyway. Out: `trail-...json` beside the capsules, on an alarm.
Next: `sdc bisect` compares a trusted replay with it.
"""

from __future__ import annotations

import hashlib
import json
import struct
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from torch import Tensor

ROW = 48  # hex digits: three 64-bit words
LONGEST = 4096  # points; older ones go


@dataclass(slots=True)
class Trail:
    """Points of this start, oldest first; equal on all ranks."""

    points: deque[tuple[int, str]] = field(default_factory=lambda: deque(maxlen=LONGEST))
    audits: deque[int] = field(default_factory=lambda: deque(maxlen=LONGEST))  # steps with audit kernels
    layers: deque[int] = field(default_factory=lambda: deque(maxlen=LONGEST))  # with a block's alone

    def passed(self, step: int, rows: str) -> None:
        """Replicas were equal after `step`, with these digest rows of their weights."""
        while self.points and self.points[-1][0] >= step:
            self.points.pop()
        self.points.append((step, short(rows)))


def short(rows: str) -> str:
    """16 hex digits for a table of digests, `ROW` of them each, in the order of the parameters."""
    return hashlib.sha256(bytes.fromhex(rows)).hexdigest()[:16]


def raw(table: Tensor) -> str:
    """A digest table (int64, [n, 3]) as hex digits."""
    return bytes(table.cpu().contiguous().numpy().tobytes()).hex()


def short_of(digests: Mapping[str, Sequence[int]], names: Sequence[str]) -> str | None:
    """The same from a checkpoint's manifest; None where it does not know all parameters."""
    if any(name not in digests for name in names):
        return None
    return short("".join(struct.pack("<3q", *digests[name]).hex() for name in names))


def text(step: int, world: int, names: Sequence[str], now: tuple[int, str], trail: Trail) -> str:
    """The file: the alarm's step, ranks of the job, parameters, audited steps, points up to `now`."""
    plain: dict[str, Any] = {"format": 1, "step": step, "world": world, "names": list(names)}
    points = [*(p for p in trail.points if p[0] < now[0]), now]
    plain |= {"audits": list(trail.audits), "layers": list(trail.layers)}
    return json.dumps({**plain, "points": [list(p) for p in points]})
