"""The ring replay of one step: every rank recomputes a peer's micro-batch, and contested ones go to
everybody.

Comes in: this rank's `Capture` and `Evidence`, the partners. Goes out: `RingResult`, then `Answers`, both
equal on all ranks. Next: `attribution` names, `_alarm` writes it down.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any

import torch

from ._capture import Capture, Unit
from ._comm import Comm
from ._courier import Courier
from ._evidence import Depth, Evidence
from ._packing import PACK_ERRORS, Parcel, pack, unpack
from ._phase import Phase
from .attribution import Contested
from .contract import Pair
from .errors import in_short

Recompute = Callable[[Capture, Phase, Depth], Evidence]

# What the user's forward and the backward can raise on a batch that is not their own.
COMPUTE_ERRORS = (
    ArithmeticError,
    AssertionError,
    AttributeError,
    LookupError,
    RuntimeError,
    TypeError,
    ValueError,
)


class ReplayFailedError(Exception):
    """Some rank could not pack or compute a micro-batch; raised on all ranks alike, nothing was compared."""


@dataclass(frozen=True, slots=True)
class RingResult:
    """What this rank saw in the ring; `pairs` is equal on all ranks."""

    pairs: tuple[Pair, ...]  # mismatching ones, by target
    capture: Capture  # this rank's own start
    original: Evidence  # and what it computed in the step
    target: int  # whose micro-batch this rank replayed
    replayed: Evidence  # and what came out
    beyond: bool  # this rank's replay differs from the target's step in more than running statistics
    theirs: Capture | None = None  # what the target sent


@dataclass(frozen=True, slots=True)
class Answer:
    """One rank's results as short hex digests."""

    original: str
    target: int
    replayed: str
    again: tuple[str | None, ...]  # per contested micro-batch; None where it could not compute


class Ring:
    """The replica group with this rank's GPU; `recompute` runs a capture on it.

    `together`: it is a collective (`fully_shard`), so that all ranks compute whatever one of them must.
    """

    def __init__(
        self, comm: Comm, device: torch.device, recompute: Recompute, together: bool = False
    ) -> None:
        self.comm = comm
        self._device = device
        self._recompute = recompute
        self._together = together
        self.courier = Courier(comm)

    def expect(self, targets: Sequence[int]) -> None:
        """A step begins that will be replayed; its micro-batch may travel ahead."""
        if self.courier.ahead:
            target, replayer = self._neighbours(targets)
            self.courier.expect(to=replayer, source=target)

    def replay(
        self, targets: Sequence[int], capture: Capture, original: Evidence, *, several: bool = False
    ) -> RingResult:
        """Swap captures along the ring, recompute the target's, compare with what the target itself got.

        Args:
            targets: `targets[i]` is whose micro-batch `comm.ranks[i]` replays; a permutation.
            capture: this rank's own; all ranks call this.
            original: what this rank computed in the step.
            several: whether this rank's update has more than one micro-batch.

        Raises:
            ReplayFailedError: on all ranks, when some rank could not pack or recompute.
            PeerLostError: a peer vanished.
        """
        comm = self.comm
        target, replayer = self._neighbours(targets)
        problem = ""
        nbytes = self.courier.carried(capture)
        letter = self.courier.received()
        try:
            parcel = pack((None if nbytes else capture, original), comm.device)
        except PACK_ERRORS as e:
            problem = f"rank {comm.rank} cannot send its batch: {in_short(e)}"
            parcel = pack(None, comm.device)
        nbytes += parcel.body.numel()
        content, trouble = self._opened(comm.swap(parcel, to=replayer, source=target), letter, target)
        problem = problem or trouble
        if self._together and comm.total([bool(problem)])[0]:  # all compute, or none
            raise ReplayFailedError("; ".join(comm.complaints(problem)[:3]))
        replayed = None
        if content is not None:
            replayed, trouble = self._attempt(content[0], target, Phase.REPLAY, content[1].depth)
            problem = problem or trouble
        mismatch = content is None or replayed is None or not replayed.agrees(content[1])
        beyond = content is None or replayed is None or not replayed.agrees_but_for_statistics(content[1])
        failed, anywhere, size, more = comm.largest([bool(problem), mismatch, nbytes, several])
        if capture.unit is not Unit.BLOCK:  # whose parcel says nothing of a micro-batch's
            # Together, nothing travels ahead: replays and steps are collectives of several groups already.
            self.courier.agree(size, bool(more) or self._together)
        if failed:
            raise ReplayFailedError("; ".join(comm.complaints(problem)[:3]))
        assert replayed is not None
        flags = comm.gather(mismatch) if anywhere else [False] * comm.world
        pairs = mismatching(comm.ranks, targets, flags)
        theirs = content[0] if pairs and content is not None else None
        return RingResult(pairs, capture, original, target, replayed, beyond, theirs)

    def arbitrate(
        self,
        contested: Sequence[int],
        result: RingResult,
        voters: Mapping[int, Collection[int]],
        switched: Callable[[], AbstractContextManager[Any]] = nullcontext,
    ) -> dict[int, Answer]:
        """Give each contested micro-batch to its voters, target and replayer among them; collect answers.

        `switched` makes the context in which they compute.
        """
        again: list[str | None] = []
        for target in contested:
            mine = (result.capture, result.original.depth)
            own = pack(mine, self.comm.device) if target == self.comm.rank else None
            capture, depth = unpack(self.comm.broadcast(own, target), self._device)
            evidence, asked = None, self.comm.rank in voters[target]
            if asked or self._together:
                with switched():
                    evidence, _ = self._attempt(capture, target, Phase.ARBITRATION, depth)
            evidence = evidence if asked else None
            again.append(None if evidence is None else evidence.short())
        answer = Answer(result.original.short(), result.target, result.replayed.short(), tuple(again))
        return dict(zip(self.comm.ranks, self.comm.gather(answer), strict=True))

    def repeats(self, result: RingResult) -> bool:
        """Whether this rank gets its own step's bits again; all ranks compute at once."""
        again, _ = self._attempt(result.capture, self.comm.rank, Phase.ARBITRATION, result.original.depth)
        return again is not None and again.agrees(result.original)

    def again(self, result: RingResult) -> Evidence | None:
        """This rank's replay of the ring once more; None where it fails."""
        assert result.theirs is not None  # there were pairs
        depth = result.original.depth
        return self._attempt(result.theirs, result.target, Phase.REPLAY, depth)[0]

    def _opened(
        self, parcel: Parcel, letter: Parcel | None, target: int
    ) -> tuple[tuple[Capture, Evidence] | None, str]:
        """What the target sent, and why it cannot be used; None as well where it had nothing to send."""
        try:
            content: Any = unpack(parcel, self._device)
            if content is None:
                return None, ""
            capture, original = content
            if capture is None and letter is not None:
                capture = unpack(letter, self._device)
            return (capture, original), ""
        except PACK_ERRORS as e:
            text = f"rank {self.comm.rank} cannot rebuild the batch of rank {target}"
            return None, f"{text}: {in_short(e)}"

    def _neighbours(self, targets: Sequence[int]) -> tuple[int, int]:
        """Whose micro-batch this rank replays, and who replays this rank's."""
        ranks, own = self.comm.ranks, self.comm.rank
        return targets[ranks.index(own)], ranks[targets.index(own)]

    def _attempt(
        self, capture: Capture, target: int, phase: Phase, depth: Depth
    ) -> tuple[Evidence | None, str]:
        try:
            return self._recompute(capture, phase, depth), ""
        except COMPUTE_ERRORS as e:
            if self._together:  # the others wait inside this computation, no answer would reach them
                raise
            text = f"rank {self.comm.rank} cannot recompute the batch of rank {target}"
            return None, f"{text}: {in_short(e)}"


def mismatching(ranks: Sequence[int], targets: Sequence[int], flags: Sequence[bool]) -> tuple[Pair, ...]:
    """Ring comparisons that failed, by target; `flags[i]`: the replay of `ranks[i]` differs."""
    ring = zip(ranks, targets, flags, strict=True)
    return tuple(sorted((Pair(r, target) for r, target, f in ring if f), key=lambda p: p.target))


def contests(
    contested: Sequence[int],
    pairs: Sequence[Pair],
    answers: Mapping[int, Answer],
    voters: Mapping[int, Collection[int]],
) -> list[Contested]:
    """Lay the answers out per micro-batch: first ones vote, second ones of target and replayer do not.

    A voter that could not compute is no vote and still one of those asked.
    """
    laid_out = []
    for i, target in enumerate(contested):
        replayer = next(p.replayer for p in pairs if p.target == target)
        results = {r: answers[r].again[i] for r in sorted(voters[target])}
        second = results[target], results[replayer]
        results[target] = answers[target].original
        results[replayer] = answers[replayer].replayed
        votes = {r: v for r, v in results.items() if v is not None}
        absent = tuple(r for r, v in results.items() if v is None)
        laid_out.append(Contested(target, replayer, votes, second[0], second[1], absent))
    return laid_out
