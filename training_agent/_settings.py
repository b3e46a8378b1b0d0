"""Whether ranks compute with other settings of the model, and captures that take a rank's own along.

Comes in: the wrapped module at the begin of audited steps, a capture to replay. Goes out: what the ring saw,
with captures that hold what their rank's modules keep where that matters. Next: `_examine` judges it.

Only what has changed since the preflight: what has not, such as a rank's own number, has been proven not to
matter, and another rank's device number would lead a replay elsewhere.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from torch import nn

from ._capture import Capture, Unit
from ._comm import Comm
from ._evidence import Evidence
from ._kept import KeptValues, kept
from ._ring import Ring, RingResult
from ._startup import word_of


class Settings:
    """Of one model on this rank."""

    def __init__(self, module: nn.Module) -> None:
        self._module = module
        self._at_begin: KeptValues | None = None
        self.remember(at_start=True)

    def remember(self, at_start: bool) -> None:
        """Replays that pass in the preflight pass with what is kept now."""
        if not at_start:
            return
        self._first = {key: repr(value) for key, value in kept(self._module).items()}

    def begin(self, *, audit: bool) -> None:
        """A step begins; what its loop has set is in place, and what its forwards leave is not yet."""
        self._at_begin = kept(self._module) if audit else None

    def replay(
        self, ring: Ring, targets: Sequence[int], capture: Capture, original: Evidence, *, several: bool
    ) -> RingResult:
        """The ring's replay; where it mismatches and settings differ, again with each rank's own."""
        result = ring.replay(targets, capture, original, several=several)
        again = self._along(capture, ring.comm) if result.pairs else None
        return result if again is None else ring.replay(targets, again, original, several=several)

    def _along(self, capture: Capture, comm: Comm) -> Capture | None:
        """The capture with this rank's settings; None where all ranks have the same. A collective."""
        part = capture.unit is Unit.BLOCK
        if part and capture.whole is None:  # it is computed again inside its whole forward before it accuses
            return None
        now = kept(self._module) if self._at_begin is None else self._at_begin
        changed = {key: repr(value) for key, value in now.items() if self._first.get(key) != repr(value)}
        if comm.all_equal(word_of(sorted(changed.items()))):
            return None
        anywhere = {key for keys in comm.gather(list(changed)) for key in keys}
        own = {key: now[key] for key in anywhere if key in now}
        if part and capture.whole is not None:
            return replace(capture, whole=replace(capture.whole, kept=own))
        return replace(capture, kept=own)
