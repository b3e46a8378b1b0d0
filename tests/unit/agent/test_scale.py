"""16,384 ranks, simulated: work grows with the number of ranks and no faster, memory stays in bounds."""

from __future__ import annotations

import sys
import tracemalloc
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from tests.bench.scale import Replays, alarm_of, alone, four_bad, places_of
from training_agent._alarm import Sighting, weights_findings
from training_agent._comm import Comm
from training_agent.checks.weights import Divergence
from training_agent.contract import Check
from training_agent.placement import RankMap, partners, quorum

RANKS = 16_384
LIMIT = 16 * 2**20  # bytes a rank


def lines(action: Callable[[], Any]) -> int:
    """How many lines of Python run, turns of loops included: what time cannot say on a busy machine."""
    count = [0]

    def seen(_frame: Any, _event: str, _arg: Any) -> Any:
        count[0] += 1
        return seen

    before = sys.gettrace()
    sys.settrace(seen)
    try:
        action()
    finally:
        sys.settrace(before)
    return count[0]


@pytest.fixture(scope="module")
def first() -> Iterator[Comm]:
    with alone() as comm:
        yield comm


def weights_alarm(rank_map: RankMap, first: Comm) -> Any:
    divergence = Divergence(tuple(f"layer.{i}" for i in range(1000)), (rank_map.size // 3,), (), 1, 1000)
    sighting = Sighting(Check.WEIGHTS, 9, weights_findings(divergence, rank_map), divergence=divergence)
    return alarm_of(sighting, rank_map, first)


WORK: dict[str, Callable[[RankMap, Comm], Callable[[], Any]]] = {
    "rank map": lambda ranks, _: lambda: RankMap(ranks.places),
    "partners": lambda ranks, _: lambda: partners(ranks, 3),
    "quorum": lambda ranks, _: lambda: quorum(ranks, ranks.size // 2, 1),
    "replays, one bad rank": lambda ranks, first: Replays(ranks, [ranks.size // 3], first).judge,
    "replays, eight contested": lambda ranks, first: Replays(ranks, four_bad(ranks.size), first).judge,
    "weights alarm": lambda ranks, first: lambda: weights_alarm(ranks, first),
}
PER_RANK = 200  # lines; at a twentieth of a microsecond each 16,384 ranks then take a sixth of a second


@pytest.mark.parametrize("name", WORK)
def test_work_grows_with_the_ranks_and_no_faster(name: str, first: Comm) -> None:
    small, large = (lines(WORK[name](RankMap(places_of(n)), first)) for n in (128, 512))
    assert large <= 5 * small, "four times the ranks"
    assert large <= PER_RANK * 512


def test_replays_of_16384_ranks_are_localised_within_16_mb(first: Comm) -> None:
    """What the other ranks hand over included; the contested micro-batches themselves are not."""
    replays = Replays(RankMap(places_of(RANKS)), four_bad(RANKS), first)
    tracemalloc.start()
    try:
        alarm = replays.judge()
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert set(alarm.named_ranks) == replays.bad
    assert len(alarm.contests) == 8
    assert peak + replays.nbytes <= LIMIT
