"""Ships an audited micro-batch to its replayer while the backward runs, where that is worth it.

Comes in: a `Capture`, complete once the gradient of its output is known, which is when the backward begins.
Goes out: the parcel of the same one on the peer, when the replay asks for it. Next: `_ring` opens it.

A letter has one size for all ranks, agreed at the audit before: nobody has to ask how much comes, so nobody
waits before the replay. Each rank sends one letter per audited step, an empty one where it has nothing to
say by then; what is not in it travels at the replay.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from ._capture import Capture
from ._comm import Comm, Flight
from ._packing import PACK_ERRORS, Parcel, take_apart

SMALL = 1 << 16  # bytes; a parcel of this size costs nothing at the replay
LARGE = 1 << 28  # of memory twice, for a letter sent and one received; above it parcels go at the replay
TAG = 0x5DC1  # gloo matches by it: a user's own messages between the same ranks are others
_DOING = "receiving a micro-batch that was sent ahead"
_HEAD = 64  # bytes in front of the parcel, which keeps its alignment: its length and that of its tensors


@dataclass(frozen=True, slots=True)
class _Sent:
    capture: Capture | None  # what our letter holds
    nbytes: int  # of it
    flight: Flight


class Courier:
    """This rank's letters. Nothing here waits for a peer but `received`."""

    def __init__(self, comm: Comm) -> None:
        self._comm = comm
        self._room = 0  # bytes of a letter, equal on all ranks; 0: nothing travels ahead
        self._owed: tuple[int, int] | None = None  # the route of this step's letter, until it is posted
        self._sent: _Sent | None = None
        self._unclaimed: list[Flight] = []  # of steps that were not replayed

    @property
    def ahead(self) -> bool:
        """Whether the next audited micro-batch, then the step's first, travels ahead; equal on all ranks."""
        return self._room > 0

    def agree(self, largest: int, several: bool) -> None:
        """Learn from a replay what the next one will take; both arguments are equal on all ranks.

        Args:
            largest: bytes of the largest micro-batch of all ranks.
            several: whether some update had more than one, so that audits rotate among them.
        """
        ahead = SMALL < largest <= LARGE and not several
        self._room = _HEAD + -(-largest // SMALL) * SMALL if ahead else 0

    def expect(self, to: int, source: int) -> None:
        """A step begins that owes `to` a letter and gets one from `source`; on all ranks alike."""
        self._owed = (to, source)

    def send(self, capture: Capture | None) -> None:
        """Post the letter that is owed, if any; an empty one for None and for what does not fit."""
        if self._owed is None:
            return
        route, self._owed = self._owed, None
        letter = torch.empty(self._room, dtype=torch.uint8, device=self._comm.device)
        letter[:_HEAD] = 0
        nbytes = 0 if capture is None else self._write(letter, capture)
        held = capture if nbytes else None
        self._sent = _Sent(held, nbytes, self._comm.start_swap(letter, self._room, *route, tag=TAG))

    def carried(self, capture: Capture) -> int:
        """Bytes of `capture` in our letter of this step; 0: it is not in there."""
        return self._sent.nbytes if self._sent is not None and self._sent.capture is capture else 0

    def received(self) -> Parcel | None:
        """The peer's letter, if anything is in it; only once all ranks are at the replay."""
        self.send(None)  # a backward that was never watched; the peer waits for it
        self._land()
        sent, self._sent = self._sent, None
        if sent is None:
            return None
        with self._comm.peers(_DOING):
            return self._read(sent.flight.landed())

    def settle(self) -> None:
        """The step is over: post what is still owed. A letter that nobody asked for is dropped on arrival.

        Those of earlier steps are waited for: their peers have counted a step's flags with us since, so all
        of them are posted, and no more than one step's letters take up memory.
        """
        self.send(None)
        self._land()
        if self._sent is not None:
            self._unclaimed.append(self._sent.flight)
            self._sent = None

    def forget(self) -> None:
        """Leave what is under way alone: the loop has ended, perhaps on this rank only."""
        self._owed, self._sent, self._unclaimed = None, None, []

    def _land(self) -> None:
        with self._comm.peers(_DOING):
            for flight in self._unclaimed:
                flight.landed()
        self._unclaimed = []

    def _write(self, letter: Tensor, capture: Capture) -> int:
        try:
            load = take_apart(capture, self._comm.device)
        except PACK_ERRORS:
            return 0  # the replay packs it again and says so
        if load.nbytes > letter.numel() - _HEAD:
            return 0
        payload = load.into(letter[_HEAD:]).payload_bytes
        letter[:16].view(torch.int64).copy_(torch.tensor([load.nbytes, payload], device="cpu"))
        return load.nbytes

    def _read(self, letter: Tensor) -> Parcel | None:
        nbytes, payload = (int(n) for n in letter[:16].view(torch.int64).tolist())
        return Parcel(letter[_HEAD : _HEAD + nbytes], payload) if nbytes else None
