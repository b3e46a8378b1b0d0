"""Every position of one and two bad GPUs, through ring and arbitration: bad ranks are named or nobody."""

from __future__ import annotations

import itertools
from collections.abc import Collection, Iterable, Iterator, Mapping
from enum import Enum

import pytest

from tests.unit.agent.places import rank_map
from training_agent._ring import Answer, contests, mismatching
from training_agent.attribution import Attribution, attribute, contested_targets
from training_agent.contract import FindingKind, SecondConfirmation, Verdict
from training_agent.placement import EVERYBODY_VOTES, RankMap, partners, quorum


class Bad(Enum):
    """When a bad GPU computes wrong."""

    PERSISTENT = ("original", "ring", "arbitration", "again")
    TRANSIENT = ("original",)
    REPLAYER = ("ring", "arbitration", "again")
    REPLAYER_ONCE = ("ring",)


EXPECTED = {
    Bad.PERSISTENT: (FindingKind.CULPRIT, Verdict.PERSISTENT, None),
    Bad.TRANSIENT: (FindingKind.PAIR, Verdict.TRANSIENT, None),
    Bad.REPLAYER: (FindingKind.PAIR, Verdict.REPLAYER, SecondConfirmation.REPEATS),
    Bad.REPLAYER_ONCE: (FindingKind.PAIR, Verdict.REPLAYER, SecondConfirmation.AGREES),
}


def play(
    ranks: RankMap, audit: int, bad: Mapping[int, Bad], *, identical: bool, fails: Collection[int] = ()
) -> Attribution | None:
    """One audit with these bad GPUs; None when no comparison mismatches.

    What a GPU computes is made up; who replays, votes and is named are the product's own functions. `fails`
    cannot compute any micro-batch of the arbitration, as on a GPU without memory left.
    """

    def result(rank: int, target: int, when: str) -> str:
        if rank in bad and when in bad[rank].value:
            return f"{target} wrong" + ("" if identical else f" by {rank}")
        return f"{target} right"

    everybody = range(ranks.size)
    targets = partners(ranks, audit)
    originals = [result(r, r, "original") for r in everybody]
    replays = [result(r, targets[r], "ring") for r in everybody]
    pairs = mismatching(everybody, targets, [replays[r] != originals[targets[r]] for r in everybody])
    contested = contested_targets(pairs)
    assert contested is not None
    if not pairs:
        return None
    replayers = {p.target: p.replayer for p in pairs}
    voters = {target: quorum(ranks, target, replayers[target]) for target in contested}

    def again(rank: int, target: int) -> str | None:
        if rank in fails or rank not in voters[target]:
            return None
        return result(rank, target, "again" if rank in (target, replayers[target]) else "arbitration")

    answers = {
        r: Answer(originals[r], targets[r], replays[r], tuple(again(r, target) for target in contested))
        for r in everybody
    }
    return attribute(ranks, pairs, contests(contested, pairs, answers, voters))


def layouts(n: int) -> Iterator[RankMap]:
    """One, two and three GPUs a node where that can be audited, and an uneven interleaved one."""
    for per_node in (1, 2, 3):
        if n > per_node:
            yield rank_map([rank // per_node for rank in range(n)])
    if n >= 5:
        yield rank_map([0, 1, 2, 0, 1] + [2 + rank % 2 for rank in range(n - 5)])


def games(n: int) -> Iterator[tuple[RankMap, int]]:
    for ranks in layouts(n):
        rounds = len({partners(ranks, audit) for audit in range(8)})
        yield from ((ranks, audit) for audit in range(rounds))


def failing_voters(ranks: RankMap, audit: int, bad: Collection[int]) -> Iterator[int]:
    """Every position of the one that cannot recompute, but one of each set of positions that are alike.

    A healthy rank that neither replays a bad one nor is replayed by it only votes, and everybody votes up to
    16 ranks. Two such on one node can change places, and so can two nodes of one size with nobody else on
    them: all that the product may see, who is on a node with whom, stays as it is.
    """
    targets = partners(ranks, audit)
    assert ranks.size <= EVERYBODY_VOTES
    busy = {*bad, *(targets[r] for r in bad), *(r for r in range(ranks.size) if targets[r] in bad)}
    nodes = {ranks.node_of(r) for r in busy}
    seen = set()
    for rank in range(ranks.size):
        node = ranks.node_of(rank)
        kind = rank if rank in busy else node if node in nodes else f"of {len(ranks.ranks_on(node))}"
        if kind not in seen:
            seen.add(kind)
            yield rank


def first_games(n: int) -> Iterator[tuple[RankMap, int]]:
    """All games of a small job, one of each layout of a larger one."""
    return games(n) if n <= 8 else ((ranks, 0) for ranks in layouts(n))


@pytest.mark.parametrize("n", range(3, 13))
def test_one_bad_gpu_is_always_named_with_its_verdict(n: int) -> None:
    for ranks, audit in games(n):
        for rank, kind in itertools.product(range(n), Bad):
            found = play(ranks, audit, {rank: kind}, identical=False)
            assert found is not None
            (finding,) = found.findings
            assert (finding.rank, finding.majority) == (rank, True)
            assert (finding.kind, finding.verdict, finding.second_confirmation) == EXPECTED[kind]


def two_bad(n: int, identical: bool) -> Iterator[tuple[dict[int, Bad], Attribution | None]]:
    for ranks, audit in games(n):
        for first, second in itertools.combinations(range(n), 2):
            for kinds in itertools.product(Bad, repeat=2):
                bad = {first: kinds[0], second: kinds[1]}
                yield bad, play(ranks, audit, bad, identical=identical)


def named(found: Attribution | None) -> set[int]:
    return {f.rank for f in found.findings if f.rank is not None} if found else set()


FAILING = [pytest.param(n, i, marks=pytest.mark.soak) for n in range(7, 13) for i in (False, True)]
SMALL = [(n, identical) for n in range(3, 9) for identical in (False, True) if n > 3 or not identical]
LARGE = [pytest.param(n, i, marks=pytest.mark.soak) for n in range(9, 13) for i in (False, True)]


@pytest.mark.parametrize(("n", "identical"), SMALL + LARGE)
def test_two_bad_gpus_never_accuse_a_healthy_one(n: int, identical: bool) -> None:
    for bad, found in two_bad(n, identical):
        assert named(found) <= set(bad), (bad, found)


@pytest.mark.parametrize("n", range(4, 13))
def test_a_voter_that_cannot_recompute_stays_in_the_denominator(n: int) -> None:
    """Two of three answers are no majority where four were asked: the missing one may be the healthy one."""
    for ranks, audit in first_games(n):
        for first, second in itertools.combinations(range(n), 2):
            bad = {first: Bad.PERSISTENT, second: Bad.PERSISTENT}
            for absent in range(n):
                found = play(ranks, audit, bad, identical=True, fails={absent})
                assert named(found) <= set(bad), (bad, absent, found)


@pytest.mark.parametrize("n", range(4, 13))
def test_one_bad_gpu_is_still_named_when_one_voter_cannot_recompute_from_five_ranks_on(n: int) -> None:
    for ranks, audit in first_games(n):
        for rank, kind, absent in itertools.product(range(n), Bad, range(n)):
            found = play(ranks, audit, {rank: kind}, identical=False, fails={absent})
            assert named(found) == {rank} or (n == 4 and not named(found))


@pytest.mark.parametrize(("n", "identical"), [(n, i) for n in range(4, 7) for i in (False, True)] + FAILING)
def test_two_bad_gpus_of_any_kind_and_a_failing_voter_never_accuse_a_healthy_one(
    n: int, identical: bool
) -> None:
    for ranks, audit in games(n):
        for pair in itertools.combinations(range(n), 2):
            voters = tuple(failing_voters(ranks, audit, pair))
            for kinds, absent in itertools.product(itertools.product(Bad, repeat=2), voters):
                bad = dict(zip(pair, kinds, strict=True))
                found = play(ranks, audit, bad, identical=identical, fails={absent})
                assert named(found) <= set(bad), (bad, absent, found)


def test_failing_voters_that_are_alike_end_alike() -> None:
    """Holds the argument of `failing_voters`: some positions have all the outcomes that all of them have."""

    def outcomes(ranks: RankMap, audit: int, bad: dict[int, Bad], absent: Iterable[int]) -> set[object]:
        found = (play(ranks, audit, bad, identical=True, fails={a}) for a in absent)
        return {f and tuple((x.kind, x.rank, x.verdict) for x in f.findings) for f in found}

    for ranks, audit in first_games(12):
        looked = 0
        for pair in itertools.islice(itertools.combinations(range(12), 2), 0, None, 7):
            some = tuple(failing_voters(ranks, audit, pair))
            looked += len(some)
            for kinds in ((Bad.PERSISTENT, Bad.PERSISTENT), (Bad.TRANSIENT, Bad.REPLAYER)):
                bad = dict(zip(pair, kinds, strict=True))
                assert outcomes(ranks, audit, bad, some) == outcomes(ranks, audit, bad, range(12))
        assert looked < 10 * 12  # of ten pairs


def test_a_quorum_of_a_large_job_counts_its_missing_voters_too() -> None:
    ranks = rank_map([rank // 2 for rank in range(24)])
    for other in range(1, 24):
        bad = {0: Bad.PERSISTENT, other: Bad.PERSISTENT}
        for target, replayer in ((0, other), (other, 0)):
            asked = quorum(ranks, target, replayer)
            for absent in itertools.combinations([r for r in asked if r not in bad], 3):
                found = play(ranks, 0, bad, identical=True, fails=absent)
                assert named(found) <= set(bad), (bad, absent, found)


@pytest.mark.parametrize("n", [5, 6])
def test_two_bad_gpus_with_different_bits_are_both_named_from_five_ranks_on(n: int) -> None:
    for bad, found in two_bad(n, identical=False):
        assert named(found) == set(bad), (bad, found)


def test_identical_bits_on_three_ranks_are_the_documented_limit() -> None:
    """Nothing distinguishes two liars who agree from two witnesses: the README says four ranks."""
    ranks = rank_map([0, 1, 2])
    found = play(ranks, 0, {0: Bad.PERSISTENT, 1: Bad.PERSISTENT}, identical=True)
    assert named(found) == {2}


@pytest.mark.parametrize("n", range(3, 9))
def test_code_that_depends_on_the_rank_is_software_whoever_replays_whom(n: int) -> None:
    for ranks, audit in games(n):
        bad = dict.fromkeys(range(n), Bad.PERSISTENT)
        found = play(ranks, audit, bad, identical=False)
        assert found is not None
        assert [f.kind for f in found.findings] == [FindingKind.SOFTWARE]


def test_two_bad_gpus_of_a_four_rank_job_name_nobody_and_say_who_was_involved() -> None:
    ranks = rank_map([0, 1, 2, 3])
    found = play(ranks, 0, {0: Bad.PERSISTENT, 2: Bad.PERSISTENT}, identical=False)
    assert found is not None
    (finding,) = found.findings
    assert finding.verdict is Verdict.UNATTRIBUTABLE
    assert {p.rank for p in finding.involved} >= {0, 2}
