"""Where ranks run and who replays whom. In: a `Place` per rank. Out: rank map and partners.

Everything here is pure. Next step: the guard's ring replay, `attribution`.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter, defaultdict, deque
from collections.abc import Hashable, Iterable, Sequence
from dataclasses import dataclass

from .contract import Independence, Place
from .errors import ConfigurationError

MAX_OFFSETS = 8  # each new pair of ranks costs NCCL channels and memory
EVERYBODY_VOTES = 16  # ranks; in larger jobs a quorum recomputes a contested micro-batch
QUORUM = 7
NODES_FOR_INDEPENDENCE = 3  # original, replayer and arbiter each on a node of their own


@dataclass(frozen=True, slots=True)
class RankMap:
    """The places of the replicas, ascending by rank; those may be some of the job's ranks only.

    Raises:
        ConfigurationError: ranks are not in order, or two of them claim one GPU.
    """

    places: tuple[Place, ...]

    def __post_init__(self) -> None:
        ranks = [p.rank for p in self.places]
        if ranks != sorted(set(ranks)):
            raise ConfigurationError(f"rank map: expected each rank once, in order, got {ranks[:16]}")
        self._refuse_shared("local rank", ((p.node, p.local_rank) for p in self.places))
        self._refuse_shared("GPU", ((p.node, p.gpu_uuid) if p.gpu_uuid else None for p in self.places))

    def _refuse_shared(self, what: str, seats: Iterable[Hashable]) -> None:
        taken: defaultdict[Hashable, list[int]] = defaultdict(list)
        for rank, seat in zip(self.ranks, seats, strict=True):
            if seat is not None:
                taken[seat].append(rank)
        for seat, ranks in taken.items():
            if len(ranks) > 1:
                raise ConfigurationError(
                    f"ranks {ranks} claim the same {what} {seat}: replays on one GPU prove nothing; "
                    "start one process per GPU and give each node its own NODE_NAME"
                )

    @property
    def size(self) -> int:
        """Number of ranks."""
        return len(self.places)

    @property
    def ranks(self) -> tuple[int, ...]:
        """All of them, ascending."""
        return tuple(p.rank for p in self.places)

    def place(self, rank: int) -> Place:
        """Where a rank runs."""
        return self.places[bisect_left(self.places, rank, key=lambda p: p.rank)]

    @property
    def nodes(self) -> tuple[str, ...]:
        """Node names in the order of their lowest rank."""
        return tuple(dict.fromkeys(p.node for p in self.places))

    @property
    def independence(self) -> Independence:
        """By node from three nodes on, by GPU below."""
        return Independence.NODE if len(self.nodes) >= NODES_FOR_INDEPENDENCE else Independence.GPU

    def node_of(self, rank: int) -> str:
        """Node of a rank."""
        return self.place(rank).node

    def ranks_on(self, node: str) -> tuple[int, ...]:
        """Ranks on a node, ascending."""
        return tuple(p.rank for p in self.places if p.node == node)


def rank_map_of(places: Iterable[Place]) -> RankMap:
    """The map of these places, in any order."""
    return RankMap(tuple(sorted(places, key=lambda p: p.rank)))


def partners(rank_map: RankMap, audit_index: int, rotate: bool = True) -> tuple[int, ...]:
    """Say whose micro-batch each rank replays in one audit: `result[i]` is the target of `ranks[i]`.

    Ranks are lined up node by node and the line is shifted against itself. A shift of at least the largest
    node's size, from either end, never meets its own node: possible if and only if no node holds more than
    half of the ranks. Then every layout, uneven or interleaved, gets such a permutation.

    Args:
        rank_map: all places.
        audit_index: running number of the audit, equal on all ranks.
        rotate: move on to another offset from audit to audit; False: one node's GPU count, always.

    Raises:
        ConfigurationError: fewer than two ranks; or, from three nodes on, one holds more than half.
    """
    offsets = _offsets(rank_map)
    offset = offsets[audit_index % len(offsets)] if rotate else offsets[0]
    line = _line(rank_map)
    target = {rank: line[(position + offset) % len(line)] for position, rank in enumerate(line)}
    return tuple(target[rank] for rank in rank_map.ranks)


def replica_partners(
    rank_map: RankMap, replicas: Sequence[Sequence[int]], audit_index: int, rotate: bool = True
) -> tuple[int, ...]:
    """The same under HSDP: each rank replays its counterpart of another replica, which holds the same shards.

    Replicas are shifted against each other by what never meets an own node, where there is such a shift; else
    by any.

    Args:
        rank_map: all places.
        replicas: `replicas[i][j]` holds shard j in replica i.
        audit_index, rotate: as for `partners`.
    """
    count = len(replicas)

    def shifted(by: int) -> dict[int, int]:
        return {
            rank: replicas[(i + by) % count][j]
            for i, replica in enumerate(replicas)
            for j, rank in enumerate(replica)
        }

    every = [shifted(by) for by in range(1, count)]
    apart = [s for s in every if all(rank_map.node_of(a) != rank_map.node_of(b) for a, b in s.items())]
    usable = (apart or every)[:MAX_OFFSETS]
    target = usable[audit_index % len(usable) if rotate else 0]
    return tuple(target[rank] for rank in rank_map.ranks)


def quorum(rank_map: RankMap, target: int, replayer: int) -> tuple[int, ...]:
    """Who recomputes a contested micro-batch: everybody, or in a large job seven voters on distinct nodes.

    A node-mate of the target and one of the replayer answer as well: they tell a bad GPU from a node whose
    software differs. With fewer nodes than voters the rest are other GPUs, spread evenly.
    """
    if rank_map.size <= EVERYBODY_VOTES:
        return rank_map.ranks
    waiting = _by_node(rank_map, target, replayer)
    accused = (rank_map.node_of(target), rank_map.node_of(replayer))
    chosen, taken = [target, replayer], Counter(accused)
    while len(chosen) < QUORUM:
        node = min((n for n in waiting if waiting[n]), key=lambda n: (taken[n], waiting[n][0][0]))
        chosen.append(waiting[node].popleft()[1])
        taken[node] += 1
    for node in accused:
        if waiting[node]:
            lowest = min(waiting[node], key=lambda entry: entry[1])
            waiting[node].remove(lowest)
            chosen.append(lowest[1])
    return tuple(sorted(chosen))


def _by_node(rank_map: RankMap, target: int, *others: int) -> dict[str, deque[tuple[int, int]]]:
    """Per node its ranks but these, with their distance behind `target`: not always the same nodes first."""
    ranks = rank_map.ranks
    start = ranks.index(target)
    found: defaultdict[str, deque[tuple[int, int]]] = defaultdict(deque)
    for distance in range(1, len(ranks)):
        place = rank_map.places[(start + distance) % len(ranks)]
        if place.rank not in others:
            found[place.node].append((distance, place.rank))
    return found


def _line(rank_map: RankMap) -> list[int]:
    node_index = {node: i for i, node in enumerate(rank_map.nodes)}
    seats = sorted(rank_map.places, key=lambda p: (node_index[p.node], p.local_rank, p.rank))
    return [p.rank for p in seats]


def _offsets(rank_map: RankMap) -> tuple[int, ...]:
    """Legal shifts, at most MAX_OFFSETS, the first one the largest node's GPU count."""
    n = rank_map.size
    if n < 2:
        raise ConfigurationError(
            f"{n} rank cannot be checked: a replica is compared with another one; start at least two ranks"
        )
    sizes = Counter(p.node for p in rank_map.places)
    node, largest = sizes.most_common(1)[0]
    if 2 * largest <= n:
        low, high = largest, n - largest
    elif len(sizes) < NODES_FOR_INDEPENDENCE:
        low, high = 1, n - 1  # by GPU: `independence` says so
    else:
        raise ConfigurationError(
            f"node {node} holds {largest} of {n} ranks ({_short(rank_map.ranks_on(node))}), more than half: "
            "they cannot all be replayed on another node; spread the ranks more evenly"
        )
    count = high - low + 1
    if count <= MAX_OFFSETS:
        return tuple(range(low, high + 1))
    grid = largest if len(set(sizes.values())) == 1 else 1  # even layouts keep the column: same local rank
    steps = (high - low) // grid
    spread = [low + grid * (steps * i // (MAX_OFFSETS - 1)) for i in range(MAX_OFFSETS)]
    return tuple(dict.fromkeys(spread))


def _short(ranks: tuple[int, ...]) -> str:
    head = ", ".join(map(str, ranks[:8]))
    return f"ranks {head}" + (", ..." if len(ranks) > 8 else "")
