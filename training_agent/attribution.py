"""From mismatching replays to findings, pure. In: pairs, contests, non-finite ranks. Out: whom to name.

A rank is named only against a strict majority: identical results of more than half of the ranks that were
asked to compute one micro-batch, those included that could not. So
with one or two bad GPUs, from three ranks on (four if both give the same wrong bits), no healthy one ever is.
Next step: the guard puts findings and contests into the alarm.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from .contest import MAX_CONTESTED, MAX_INVOLVED, Contested, contested_targets, places_of
from .contract import Contest, Finding, FindingKind, Pair, SecondConfirmation, Verdict, Vote
from .placement import RankMap
from .systemic import most_are_named, software

__all__ = [
    "MAX_CONTESTED",
    "MAX_INVOLVED",
    "Attribution",
    "Contested",
    "ambiguous_at_start",
    "attribute",
    "contested_targets",
]


@dataclass(frozen=True, slots=True)
class Attribution:
    """What goes into the alarm."""

    findings: tuple[Finding, ...]
    contests: tuple[Contest, ...]


def attribute(
    rank_map: RankMap,
    pairs: Sequence[Pair],
    contested: Sequence[Contested],
    *,
    nonfinite: Sequence[int] = (),
    reproduced: Mapping[int, bool | None] | None = None,
) -> Attribution:
    """Judge one alarm of check 1 (local) or check 2.

    Args:
        rank_map: all places.
        pairs: ring comparisons that mismatched.
        contested: one per contested micro-batch; empty when no arbitration was possible.
        nonfinite: ranks whose local gradient is not finite.
        reproduced: for those of them that a healthy peer replayed, whether it got the same set of
            non-finite parameters; None where their answers do not tell.

    Returns:
        Findings, the named ones first, and the contests as they travel in the alarm.
    """
    contests = tuple(_contest(c) for c in contested)
    systemic = software(rank_map, pairs, contested)
    if systemic is not None:
        return Attribution((systemic,), contests)
    hits = _hits(pairs, contested)
    named = [_named(rank_map, rank, hits[rank], contested) for rank in sorted(hits)]
    if not contested:
        named += _by_ring_alone(rank_map, pairs)
    names = {f.rank for f in named if f.rank is not None}
    systemic = most_are_named(rank_map, names)
    if systemic is not None:
        return Attribution((systemic,), contests)
    open_pairs = [p for p in pairs if _undecided(p, contested) and not names & {p.replayer, p.target}]
    open_ranks = sorted({r for p in open_pairs for r in (p.replayer, p.target)})
    findings = [*named]
    if open_ranks:
        findings.append(_unattributable(rank_map, open_ranks))
    findings += _nonfinite(rank_map, nonfinite, reproduced or {}, names | set(open_ranks))
    return Attribution(tuple(findings), contests)


def ambiguous_at_start(rank_map: RankMap, findings: Sequence[Finding]) -> tuple[Finding, ...]:
    """Take back names that a difference in software explains as well, before any audit has passed.

    A GPU that differs from its own node-mates is a hardware finding from the start. Where a node has one
    GPU, its software stands alone too: nobody is named.
    """

    def judge(finding: Finding) -> Finding:
        if finding.rank is None or len(rank_map.ranks_on(rank_map.node_of(finding.rank))) > 1:
            return finding
        text = f"{finding.evidence}; it is alone on its node and nothing has passed before: GPU or software"
        return Finding(
            FindingKind.PAIR,
            verdict=Verdict.UNATTRIBUTABLE,
            involved=(rank_map.place(finding.rank),),
            evidence=text,
        )

    return tuple(judge(f) for f in findings)


@dataclass(frozen=True, slots=True)
class _Hit:
    """One contest in which a rank was outvoted, and the part that it played there."""

    contest: Contested
    role: str


def _role(c: Contested, rank: int) -> str:
    return "target" if rank == c.target else "replayer" if rank == c.replayer else "arbiter"


def _contest(c: Contested) -> Contest:
    votes = tuple(Vote(rank, result, _role(c, rank)) for rank, result in sorted(c.results.items()))
    repeats = None if c.target_again is None else c.target_again == c.results.get(c.target)
    return Contest(c.target, c.replayer, votes, c.majority, repeats)


def _undecided(pair: Pair, contested: Sequence[Contested]) -> bool:
    return not any(c.target == pair.target and c.majority is not None for c in contested)


def _hits(pairs: Sequence[Pair], contested: Sequence[Contested]) -> dict[int, list[_Hit]]:
    """Per outvoted rank its contests; one that was in no mismatching pair must lose all that asked it.

    A question that it could not answer is not lost: it might have agreed there.
    """
    hits: defaultdict[int, list[_Hit]] = defaultdict(list)
    for c in contested:
        for rank in c.outvoted:
            hits[rank].append(_Hit(c, _role(c, rank)))
    in_ring = {r for p in pairs for r in (p.replayer, p.target)}
    decided = [c for c in contested if c.majority is not None]
    return {
        rank: found
        for rank, found in hits.items()
        if rank in in_ring or len(found) == sum(rank in c.results or rank in c.absent for c in decided)
    }


def _named(rank_map: RankMap, rank: int, hits: list[_Hit], contested: Sequence[Contested]) -> Finding:
    asked = max(h.contest.asked for h in hits)
    if len(hits) > 1:
        return Finding(
            FindingKind.CULPRIT,
            rank=rank,
            place=rank_map.place(rank),
            verdict=_culprit_verdict(hits),
            majority=True,
            evidence=f"rank {rank} was outvoted in {len(hits)} of {len(contested)} contested micro-batches, "
            f"each put to {asked} ranks",
        )
    (hit,) = hits
    verdict, second = _judge(hit)
    return Finding(
        FindingKind.PAIR,
        rank=rank,
        place=rank_map.place(rank),
        verdict=verdict,
        majority=True,
        second_confirmation=second,
        evidence=_evidence(rank, hit, verdict, second),
    )


def _culprit_verdict(hits: list[_Hit]) -> Verdict | None:
    """How the fault behaves, from the culprit's own micro-batch; None when that one was not contested."""
    own = next((h for h in hits if h.role == "target"), None)
    return None if own is None else _judge(own)[0]


def _judge(hit: _Hit) -> tuple[Verdict, SecondConfirmation | None]:
    """A second answer of a suspect is never evidence of its health, only of how its fault behaves."""
    c = hit.contest
    if hit.role == "target":
        wrong_again = c.target_again is not None and c.target_again != c.majority
        return (Verdict.PERSISTENT if wrong_again else Verdict.TRANSIENT), None
    if hit.role == "arbiter" or c.replayer_again is None:
        return Verdict.REPLAYER, SecondConfirmation.UNAVAILABLE
    agrees = c.replayer_again == c.majority
    return Verdict.REPLAYER, SecondConfirmation.AGREES if agrees else SecondConfirmation.REPEATS


def _evidence(rank: int, hit: _Hit, verdict: Verdict, second: SecondConfirmation | None) -> str:
    c = hit.contest
    agree = sum(r == c.majority for r in c.results.values())
    text = f"{agree} of {c.asked} ranks agree on the micro-batch of rank {c.target}; "
    if c.absent:
        text += f"ranks {list(c.absent[:MAX_INVOLVED])} could not compute it; "
    if hit.role == "target":
        text += f"its own result differs from what rank {c.replayer} and the others replayed"
        if c.target_again is None:
            return text + "; it could not be asked again"
        if verdict is Verdict.TRANSIENT:
            return text + "; asked again, it agrees with them"
        same = c.target_again == c.results.get(rank)
        return text + f"; asked again, it is wrong again{'' if same else ', with other bits'}"
    text += f"rank {rank} computed it wrong {'in the ring' if hit.role == 'replayer' else 'as an arbiter'}"
    if second is SecondConfirmation.REPEATS:
        return text + "; asked again, it is wrong again"
    return text + ("; asked again, it agrees" if second is SecondConfirmation.AGREES else "")


def _by_ring_alone(rank_map: RankMap, pairs: Sequence[Pair]) -> list[Finding]:
    """Without arbitration: the one rank wrong in both its comparisons, its neighbours in one each."""
    count = Counter(r for p in pairs for r in {p.replayer, p.target})
    twice = [r for r, k in count.items() if k > 1]
    if len(twice) != 1 or len(pairs) != 2:
        return []
    (rank,) = twice
    text = f"rank {rank} differs in both of its ring comparisons; nobody arbitrated"
    return [Finding(FindingKind.CULPRIT, rank=rank, place=rank_map.place(rank), evidence=text)]


def _unattributable(rank_map: RankMap, ranks: Sequence[int]) -> Finding:
    listed = ", ".join(map(str, ranks[:MAX_INVOLVED]))
    return Finding(
        FindingKind.PAIR,
        verdict=Verdict.UNATTRIBUTABLE,
        involved=places_of(rank_map, ranks),
        evidence=f"replays among ranks {listed} differ and no result has more than half of those asked",
    )


def _nonfinite(
    rank_map: RankMap, nonfinite: Sequence[int], reproduced: Mapping[int, bool | None], covered: set[int]
) -> list[Finding]:
    """Non-finite ranks without a mismatch; `covered` ones have their finding already."""
    findings = []
    for rank in sorted(set(nonfinite)):
        place = rank_map.place(rank)
        again = reproduced.get(rank)
        if again:
            text = f"healthy peers get the same non-finite parameters from the micro-batch of rank {rank}"
            findings.append(Finding(FindingKind.NONFINITE, reproduced=True, involved=(place,), evidence=text))
        elif rank not in covered:
            text = f"the local gradient of rank {rank} is NaN, Inf or too large for a float32 norm"
            text += "; a healthy peer did not get that" if again is False else "; no peer could tell"
            findings.append(
                Finding(FindingKind.NONFINITE, rank=rank, place=place, reproduced=again, evidence=text)
            )
    return findings
