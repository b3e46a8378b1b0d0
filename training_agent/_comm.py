"""The checks' own traffic inside the replica group: counters, parcels, small objects, and a bounded farewell.

Comes in: numbers, parcels (`_packing`), small picklable values. Goes out: the same on every rank. A failing
collective means that a peer vanished, which is nobody's guilt: `PeerLostError`.
"""

from __future__ import annotations

import hashlib
import itertools
import json
import time
from collections import defaultdict
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from ._accelerator import own_errors
from ._objects import gathered, handed_out, moves
from ._packing import Parcel
from .errors import PeerLostError
from .log_line import log_line

_POLL_S = 0.02
_TAG = 0x5DC0  # of our messages; gloo matches by it, so that a user's own are not taken for ours
# Comms of a group so far
_serials: defaultdict[tuple[int, ...], Iterator[int]] = defaultdict(itertools.count)


@dataclass(frozen=True, slots=True)
class Flight:
    """Messages under way: one of ours, and one that will fill `_received`."""

    _works: tuple[dist.Work, ...]
    _received: Tensor

    def landed(self) -> Tensor:
        """What came, once both are through; inside `Comm.peers`."""
        for work in self._works:
            work.wait()
        return self._received


class Comm:
    """The replica group as the checks see it. Ranks are those of the whole job, also in a part of it."""

    def __init__(self, group: dist.ProcessGroup, device: torch.device) -> None:
        self.group = group
        self.rank = dist.get_rank()
        self.ranks = tuple(dist.get_process_group_ranks(group))  # of the group, ascending
        self.world = len(self.ranks)
        self.is_first = self.rank == self.ranks[0]
        # attach is a collective, so that the numbers are equal on all ranks
        self._serial = next(_serials[self.ranks])
        self._own = device
        self.device = moves(group, device)
        self.name = name_of(self.ranks, dist.get_world_size(), self._serial)

    def total(self, counts: list[int]) -> list[int]:
        """Sum small counters over all ranks: one all-reduce, one host sync."""
        return self.total_tensor(torch.tensor(counts, dtype=torch.int64, device=self.device))

    def total_tensor(self, counts: Tensor) -> list[int]:
        """Like `total`, for counters that are still on the device (int64, 1-D)."""
        with self.peers("summing the counters of a check"):
            return [int(c) for c in self.sum_tensor(counts).tolist()]

    def sum_tensor(self, counts: Tensor) -> Tensor:
        """Sum over all ranks, in `counts` itself where the group can; NCCL does not wait for the host.

        gloo moves host memory: counters of a GPU are copied to it first, and that copy does wait.
        """
        counts = counts.to(self.device)
        with self.peers("summing the counters of a check"):
            dist.all_reduce(counts, op=dist.ReduceOp.SUM, group=self.group)
        return counts

    def largest(self, values: list[int]) -> list[int]:
        """The largest over all ranks, value by value: one all-reduce, one host sync."""
        tensor = torch.tensor(values, dtype=torch.int64, device=self.device)
        with self.peers("comparing the ranks' numbers"):
            dist.all_reduce(tensor, op=dist.ReduceOp.MAX, group=self.group)
            return [int(n) for n in tensor.tolist()]

    def all_equal(self, words: Tensor) -> bool:
        """Whether an int64 tensor is the same on all ranks: MAX over [x, ~x], O(1) in the number of ranks."""
        flat = words.reshape(-1).to(self.device)
        both = torch.cat([flat, ~flat])
        with self.peers("comparing digests"):
            dist.all_reduce(both, op=dist.ReduceOp.MAX, group=self.group)
        return torch.equal(both[: flat.numel()], ~both[flat.numel() :])

    def swap(self, parcel: Parcel, to: int, source: int) -> Parcel:
        """Send a parcel to one peer and receive one from another: sizes first, then the body."""
        own = torch.tensor([parcel.body.numel(), parcel.payload_bytes], device=self.device)
        nbytes, payload_bytes = (int(n) for n in self._swap(own, 2, to, source).tolist())
        return Parcel(self._swap(parcel.body, nbytes, to, source), payload_bytes)

    def broadcast(self, parcel: Parcel | None, source: int) -> Parcel:
        """Give the parcel of `source` to everybody; other ranks pass None."""
        sizes = torch.zeros(2, dtype=torch.int64, device=self.device)
        if parcel is not None:
            sizes = torch.tensor([parcel.body.numel(), parcel.payload_bytes], device=self.device)
        doing = f"sharing the micro-batch of rank {source}"
        with self.peers(doing):
            dist.broadcast(sizes, source, group=self.group)
            nbytes, payload_bytes = (int(n) for n in sizes.tolist())
        if parcel is None:
            room = torch.empty(nbytes, dtype=torch.uint8, device=self.device)
            parcel = Parcel(room, payload_bytes)
        with self.peers(doing):
            dist.broadcast(parcel.body, source, group=self.group)
        return parcel

    def gather(self, value: Any) -> list[Any]:
        """Collect one small picklable value per rank; for start-up and alarms, not for the healthy path.

        In the order of `ranks`.
        """
        with self.peers("gathering the ranks' answers"):
            return gathered(value, self.group, self._own)

    def complaints(self, problem: str) -> list[str]:
        """What the ranks have to say, by rank, "" left out; where nobody has, only a count travels."""
        if not self.total([bool(problem)])[0]:
            return []
        return [p for p in self.gather(problem) if p]

    def from_first(self, value: Any) -> Any:
        """Return the value of the group's first rank on every rank."""
        with self.peers("reading the first rank's answer"):
            return handed_out(value, self.ranks[0], self.group, self._own)

    def told_to_first(self, key: str, value: Any, asked: Collection[int], timeout: timedelta) -> list[Any]:
        """Collect the values (JSON) of the `asked` ranks on the first one, over the store; [] on the others.

        For moments in which somebody may be about to die: no collective, and who is late is left out.
        """
        deadline = time.monotonic() + timeout.total_seconds()
        try:
            store = self._store()
            if self.rank in asked:
                store.set(f"sdc/{self._serial}/{key}/{self.rank}", json.dumps(value))
            mine = sorted(asked) if self.is_first else []
            found = [_awaited(store, f"sdc/{self._serial}/{key}/{rank}", deadline) for rank in mine]
            return [json.loads(f) for f in found if f is not None]
        except (RuntimeError, ValueError, KeyError):  # whoever kept the store has left; the group is gone
            return []

    def told_by_first(self, key: str, value: list[Any], timeout: timedelta) -> list[Any] | None:
        """Hand the first rank's value (JSON) to every rank, as above; None: it said nothing in time."""
        key = f"sdc/{self._serial}/{key}"
        try:
            store = self._store()
            if self.is_first:
                store.set(key, json.dumps(value))
            found = _awaited(store, key, time.monotonic() + timeout.total_seconds())
            return None if found is None else list(json.loads(found))
        except (RuntimeError, ValueError, KeyError):
            return None

    def meet(self, key: str, timeout: timedelta) -> bool:
        """Wait until all ranks came here, at most `timeout`; False when somebody did not come.

        Goes over the rendezvous store, not over a collective: a rank that hangs must not hold the others
        back.
        """
        deadline = time.monotonic() + timeout.total_seconds()
        try:
            store, key = self._store(), f"sdc/{self._serial}/{key}"
            arrived = store.add(key, 1)
            while arrived < self.world and time.monotonic() < deadline:
                time.sleep(_POLL_S)
                arrived = store.add(key, 0)
        except (RuntimeError, ValueError, KeyError):  # whoever kept the store has left; the group is gone
            return False
        return bool(arrived >= self.world)

    def _store(self) -> Any:
        return dist.distributed_c10d._get_process_group_store(self.group)

    def start_swap(self, outgoing: Tensor, incoming: int, to: int, source: int, tag: int = _TAG) -> Flight:
        """Post a message to one peer and the receipt of `incoming` elements from another; wait for none."""
        received = torch.empty(incoming, dtype=outgoing.dtype, device=self.device)
        with self.peers(f"exchanging micro-batches with ranks {to} and {source}"):
            operations = [  # already they look the group up, which may be gone
                dist.P2POp(dist.isend, outgoing, to, self.group, tag),
                dist.P2POp(dist.irecv, received, source, self.group, tag),
            ]
            return Flight(tuple(dist.batch_isend_irecv(operations)), received)

    def _swap(self, outgoing: Tensor, incoming: int, to: int, source: int) -> Tensor:
        flight = self.start_swap(outgoing, incoming, to, source)
        with self.peers(f"exchanging micro-batches with ranks {to} and {source}"):
            return flight.landed()

    @contextmanager
    def peers(self, doing: str) -> Iterator[None]:
        """Turn a failing collective inside the block into `PeerLostError`.

        Only collectives, and the host's wait for them, belong inside: other work that fails there would be
        taken for a peer's end. What this rank's own GPU says stays what it is.
        """
        try:
            yield
        except own_errors():
            raise
        except (RuntimeError, ValueError) as e:  # gloo's and NCCL's own errors; the group was destroyed
            log_line("peer_lost", rank=self.rank, doing=doing, error=str(e)[:200])
            raise PeerLostError(
                f"Rank {self.rank}: a peer vanished while {doing} ({e}). Nobody is suspected for that; look "
                "at the first rank that exited."
            ) from e


def name_of(ranks: tuple[int, ...], world: int, serial: int) -> str:
    """What tells the alarms of a job's guards apart; "" for the first guard over all ranks.

    Equal on all ranks, and at the next start of the same script.

    Args:
        ranks: of the group, in the whole job.
        world: ranks of the whole job.
        serial: how many guards this group has had before in these processes.
    """
    parts = []
    if len(ranks) < world:
        digest = hashlib.sha256(",".join(map(str, ranks)).encode()).hexdigest()[:8]
        parts.append(f"{len(ranks)} ranks from {ranks[0]} on ({digest})")
    if serial:
        parts.append(f"guard {serial + 1}")
    return ", ".join(parts)


def _awaited(store: Any, key: str, deadline: float) -> bytes | None:
    """A key's value; None when it is not there by the `deadline` (time.monotonic())."""
    while not store.check([key]):
        if time.monotonic() >= deadline:
            return None
        time.sleep(_POLL_S)
    return bytes(store.get(key))
