"""Whether ranks compute with other surroundings, and captures that take a rank's own along.

Comes in: what each rank's program keeps (`_surroundings`) when the replayed micro-batch began. Goes out: what
the ring saw, with captures that hold what their rank keeps where that matters. Next: `_examine` judges it.

First what has changed since the preflight alone, which leaves a device's number out; then whatever differs.
It matters where a rank's replay comes out different with it and, made without it again, as it had come out.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from contextlib import AbstractContextManager
from dataclasses import replace

from ._capture import Capture, Unit
from ._comm import Comm
from ._evidence import Evidence
from ._generators import GeneratorState
from ._kept import Gone, KeptValues, print_of
from ._ring import ReplayFailedError, Ring, RingResult
from ._startup import word_of
from ._step_record import MicroBatch
from ._surroundings import Surroundings

Key = tuple[str, str]


class Settings:
    """Of one training loop on this rank."""

    def __init__(self, surroundings: Surroundings) -> None:
        self._surroundings = surroundings
        self._first: dict[Key, str] = {}

    def beginning(self, batch: MicroBatch | None, at_start: bool = False) -> AbstractContextManager[None]:
        """A block in which replays begin with what this rank kept when its own micro-batch began.

        What is kept in the preflight is what all later steps are measured by.
        """
        if at_start:
            self._first = {key: print_of(value) for key, value in self._surroundings.kept().items()}
        return self._surroundings.beginning(None if batch is None else batch.kept)

    def replay(
        self,
        ring: Ring,
        kept: KeptValues | None,
        targets: Sequence[int],
        capture: Capture,
        original: Evidence,
        *,
        several: bool,
    ) -> RingResult:
        """The ring's replay; where it mismatches and surroundings differ, again with each rank's own.

        Args:
            kept: by this rank's program when the micro-batch began; None: what it keeps now.
        """
        result = ring.replay(targets, capture, original, several=several)
        part = capture.unit is Unit.BLOCK
        if not result.pairs or (part and capture.whole is None):  # such a block is computed again inside it
            return result
        now = self._drawn(kept)
        best = result
        for keys in self._differing(now, ring.comm):
            own = {key: now[key] for key in keys if key in now}
            own |= dict.fromkeys(self._surroundings.lacking(set(keys) - now.keys()), Gone.GONE)
            try:
                again = ring.replay(targets, _along(capture, own), original, several=several)
            except ReplayFailedError:
                continue
            best = again if best is result or len(again.pairs) < len(best.pairs) else best
            if not best.pairs:
                break
        return best if best is not result and self._matters(ring, result, best) else result

    def _drawn(self, kept: KeptValues | None) -> KeptValues:
        """What was kept, or is now, without generators from which nothing was drawn."""
        now = self._surroundings.kept()
        before = now if kept is None else kept

        def used(key: Key, value: object) -> bool:
            moved = print_of(now.get(key)) != print_of(value)
            return moved or key in self._surroundings.drawn or not isinstance(value, GeneratorState)

        return {key: value for key, value in before.items() if used(key, value)}

    def _differing(self, begun: KeptValues, comm: Comm) -> list[Collection[Key]]:
        """Keys whose values ranks do not share: those that changed since the preflight, then all."""
        prints = {key: print_of(value) for key, value in begun.items()}
        if comm.all_equal(word_of(sorted(prints.items()))):
            return []
        changed = {key for key, value in prints.items() if self._first.get(key) != value}
        answers = comm.gather((prints, changed))
        every = {key for theirs, _ in answers for key in theirs}
        unlike = {key for key in every if len({theirs.get(key) for theirs, _ in answers}) > 1}
        moved = unlike & {key for _, theirs in answers for key in theirs}
        return [keys for keys in (moved, unlike - moved and unlike) if keys]

    @staticmethod
    def _matters(ring: Ring, plain: RingResult, own: RingResult) -> bool:
        """Whether replays are other ones with each rank's own values, time and again; a collective."""
        again = ring.again(plain)
        here = again is not None and again.agrees(plain.replayed) and not own.replayed.agrees(plain.replayed)
        return ring.comm.total([int(here)])[0] > 0


def _along(capture: Capture, own: KeptValues) -> Capture:
    if capture.whole is not None:
        return replace(capture, whole=replace(capture.whole, kept=own))
    return replace(capture, kept=own)
