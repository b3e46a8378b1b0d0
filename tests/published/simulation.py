"""What needs no processes: names with two bad GPUs, and lane patterns under both digests."""

from __future__ import annotations

import itertools

import torch

from tests.published.fingerprint import fingerprint
from tests.published.naming import Pair, name
from training_agent.attribution import Contested, attribute
from training_agent.contract import Pair as RingPair
from training_agent.contract import Place
from training_agent.digest import digest
from training_agent.faults import Lanes, Spot, corrupted
from training_agent.placement import RankMap

GPUS = 2  # a node
LANES = (4, 8, 16, 32)
TRIALS = 500  # per number of lanes


def wrong_names(ranks: int) -> tuple[int, int, int]:
    """Two GPUs with identical wrong bits, at every pair of positions.

    Returns:
        Positions at which the published way names a healthy GPU, at which ours does, and all positions.
    """
    positions = list(itertools.combinations(range(ranks), 2))
    published = sum(not published_names(ranks, set(bad)) <= set(bad) for bad in positions)
    ours = sum(not our_names(ranks, set(bad)) <= set(bad) for bad in positions)
    return published, ours, len(positions)


def _ring(ranks: int, bad: set[int]) -> list[Pair]:
    ring = [(r, (r + GPUS) % ranks) for r in range(ranks)]
    return [(r, t) for r, t in ring if (r in bad) != (t in bad)]


def published_names(ranks: int, bad: set[int]) -> set[int]:
    """Whom the published way names."""

    def result(who: int, target: int) -> str:
        return f"{target} {'wrong' if who in bad else 'right'}"

    names = name(
        _ring(ranks, bad), lambda pair: (result(pair[1], pair[1]), result(*pair)), result, GPUS, ranks
    )
    return {n.rank for n in names if n.rank is not None}


def our_names(ranks: int, bad: set[int]) -> set[int]:
    """Whom the agent names."""
    places = tuple(Place(r, r % GPUS, f"node-{r // GPUS}", None, None) for r in range(ranks))
    pairs = _ring(ranks, bad)
    contested = [
        Contested(t, r, {w: "wrong" if w in bad else "right" for w in range(ranks)}, *_again(t, r, bad))
        for r, t in pairs
    ]
    found = attribute(RankMap(places), [RingPair(*p) for p in pairs], contested)
    return {f.rank for f in found.findings if f.rank is not None}


def _again(target: int, replayer: int, bad: set[int]) -> tuple[str, str]:
    return ("wrong" if target in bad else "right"), ("wrong" if replayer in bad else "right")


def missed_lanes(lanes: int, trials: int = TRIALS) -> tuple[int, int]:
    """Of `trials` faults (one bit toggled in adjacent elements) how many each digest misses."""
    generator = torch.Generator().manual_seed(lanes)
    published = ours = 0
    for trial in range(trials):
        healthy = torch.randn(2048, generator=generator)
        wrong = corrupted(healthy, Lanes(lanes, trial % 23), Spot(trial))
        assert wrong is not None and not torch.equal(wrong, healthy)
        published += torch.equal(fingerprint([healthy]), fingerprint([wrong]))
        ours += torch.equal(digest([healthy]), digest([wrong]))
    return published, ours
