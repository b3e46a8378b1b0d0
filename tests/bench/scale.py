"""What 16,384 ranks cost one of them, simulated in one process: map, partners, both localisations, alarm.

Goes out: seconds and bytes. The job's own collectives are not in them; what they hand over is, as the boxes
that `all_gather_object` unpacks on every rank.
"""

from __future__ import annotations

import pickle
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
import torch.distributed as dist

from training_agent._alarm import Passes, Sighting, build, weights_findings
from training_agent._comm import Comm
from training_agent._ring import Answer, contests, mismatching
from training_agent.attribution import attribute
from training_agent.checks.weights import Divergence, judge
from training_agent.contest import contested_targets
from training_agent.contract import Alarm, Check, Pair, Place
from training_agent.contract import Job as JobName
from training_agent.contract.codec import encode
from training_agent.placement import RankMap, partners, quorum
from training_agent.settings import AgentSettings

RANKS, GPUS, TENSORS = 16_384, 8, 1_000


def measure(ranks: int = RANKS, tensors: int = TENSORS) -> dict[str, Any]:
    """One figure each; the job's own collectives are not in them."""
    out: dict[str, Any] = {"ranks": ranks, "tensors": tensors}
    places = places_of(ranks)
    boxes = [pickle.dumps(p) for p in places]  # what all_gather_object hands to every rank
    _timed(out, "one_gather_of_places_s", lambda: [pickle.loads(box) for box in boxes])
    out["one_gather_of_places_bytes"] = sum(map(len, boxes))
    rank_map = _timed(out, "rank_map_s", lambda: RankMap(places))
    _timed(out, "partners_s", lambda: partners(rank_map, 3))
    _timed(out, "quorum_s", lambda: quorum(rank_map, ranks // 2, 1))
    common = torch.randint(-(2**62), 2**62, (1, tensors, 3))
    one_bad = Job(common, {ranks // 3: slice(None)}, ranks)
    _timed(out, "weights_one_bad_rank_s", one_bad.judge, one_bad)
    out["weights_one_bad_rank_bytes"] = one_bad.largest
    half = {r: slice(r % tensors, r % tensors + 1) for r in range(ranks // 2 + 1)}
    many_bad = Job(common, half, ranks)
    _timed(out, "weights_half_of_the_ranks_bad_s", many_bad.judge, many_bad)
    out["weights_half_of_the_ranks_bad_bytes"] = many_bad.largest
    divergence = Divergence(tuple(f"layer.{i}" for i in range(tensors)), (ranks // 3,), (), 1, tensors)
    sighting = Sighting(Check.WEIGHTS, 100, weights_findings(divergence, rank_map), divergence=divergence)
    with alone() as first:
        alarm = _timed(out, "alarm_s", lambda: alarm_of(sighting, rank_map, first))
        for name, bad in (("one_bad_rank", [ranks // 3]), ("four_bad_ranks", four_bad(ranks))):
            replays = Replays(rank_map, bad, first)
            _timed(out, f"replay_{name}_s", replays.judge)
            out[f"replay_{name}_bytes"] = replays.nbytes
    out["alarm_bytes"] = len(encode(alarm))
    return out


def places_of(ranks: int) -> tuple[Place, ...]:
    """Full nodes, one after the other."""
    return tuple(
        Place(r, r % GPUS, f"hyperpod-i-{r // GPUS:017x}", f"i-{r // GPUS:017x}", f"GPU-{r}", None, None)
        for r in range(ranks)
    )


def four_bad(ranks: int) -> list[int]:
    """Far from each other: eight contested micro-batches, the most that are arbitrated."""
    return [ranks * i // 4 + i for i in range(4)]


def alarm_of(sighting: Sighting, rank_map: RankMap, first: Comm) -> Alarm:
    """The alarm, as rank 0 builds it."""
    settings = AgentSettings("bench", JobName("bench", "uid"), rank_map.places[0].node)
    return build(sighting, Passes(90, 90), rank_map, settings, first, None)


class Replays:
    """A ring whose bad ranks compute everything wrong, as one rank gets it from the others."""

    def __init__(self, rank_map: RankMap, bad: Sequence[int], first: Comm) -> None:
        self.rank_map, self.bad, self._first = rank_map, set(bad), first
        self.targets = partners(rank_map, 3)
        wrong = [bool({r, t} & self.bad) for r, t in zip(rank_map.ranks, self.targets, strict=True)]
        self._flags = [pickle.dumps(w) for w in wrong]
        asked = len(contested_targets(self.pairs) or ())
        self._answers = [pickle.dumps(self._answer(r, t, asked)) for r, t in enumerate(self.targets)]
        self.nbytes = sum(map(len, self._flags)) + sum(map(len, self._answers))

    @property
    def pairs(self) -> tuple[Pair, ...]:
        """What the ring found."""
        return mismatching(self.rank_map.ranks, self.targets, [pickle.loads(box) for box in self._flags])

    def judge(self) -> Alarm:
        """Localisation after the last collective, as every rank runs it, and the alarm."""
        pairs = self.pairs
        replayers = {p.target: p.replayer for p in pairs}
        voters = {t: quorum(self.rank_map, t, replayers[t]) for t in contested_targets(pairs) or ()}
        answers = {rank: pickle.loads(box) for rank, box in enumerate(self._answers)}
        found = attribute(self.rank_map, pairs, contests(list(voters), pairs, answers, voters))
        assert {f.rank for f in found.findings} == self.bad
        sighting = Sighting(Check.REPLAY, 100, found.findings, pairs=pairs, contests=found.contests)
        return alarm_of(sighting, self.rank_map, self._first)

    def _answer(self, rank: int, target: int, asked: int) -> Answer:
        own = f"{rank + 1:016x}" if rank in self.bad else "0" * 16
        return Answer(own, target, own, (own,) * asked)


class Job:
    """All ranks' tables in one process: a common one, and which rows are wrong on which rank."""

    def __init__(self, common: torch.Tensor, wrong: dict[int, slice], ranks: int) -> None:
        self.common, self.wrong, self.ranks = common, wrong, ranks
        self.at = self.largest = 0
        self.building_s = 0.0  # of the simulation itself

    def judge(self) -> None:
        """The localisation, as every rank runs it."""
        outvoted, undecided = judge(self.common[0], self.ranks, self._gather)
        assert outvoted == set(self.wrong) and not undecided

    def _gather(self, rows: torch.Tensor) -> torch.Tensor:
        start = time.perf_counter()
        whole = len(rows) == 1 and self.at == 0  # the row that stands for the table
        part = rows if whole else self.common[0, self.at : self.at + len(rows)]
        out = part.expand(self.ranks, len(part), 3).clone()
        for rank, columns in self.wrong.items():
            if whole:
                out[rank] += rank + 1
            else:
                low, high = columns.start or 0, columns.stop or self.common.shape[1]
                out[rank, max(0, low - self.at) : max(0, high - self.at)] += rank + 1
        self.at += 0 if whole else len(rows)
        self.largest = max(self.largest, out.nbytes)
        self.building_s += time.perf_counter() - start
        return out


class First(Comm):
    """Rank 0, whose simulated peers have no capsules to tell of."""

    def told_to_first(self, *_: Any) -> list[Any]:
        """Nothing, and no wait for ranks that do not exist."""
        return []


@contextmanager
def alone() -> Iterator[Comm]:
    """Rank 0 of a real group of one."""
    with tempfile.TemporaryDirectory() as folder:
        dist.init_process_group("gloo", init_method=f"file://{folder}/store", rank=0, world_size=1)
        try:
            yield First(dist.group.WORLD, torch.device("cpu"))
        finally:
            dist.destroy_process_group()


def _timed(out: dict[str, Any], name: str, action: Any, job: Job | None = None) -> Any:
    start = time.perf_counter()
    result = action()
    simulated = 0.0 if job is None else job.building_s
    out[name] = round(time.perf_counter() - start - simulated, 4)
    return result
