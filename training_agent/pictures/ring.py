"""The ring of ranks: who recomputed whom with other bits, and what the third GPUs said.

In: an alarm and the accused ranks. Out: a picture, None when there is nobody to draw. Large jobs are drawn by
those involved alone.
"""

from __future__ import annotations

import math

from markupsafe import Markup

from training_agent.contract import Alarm, Check, Contest

from .svg import BAD, DOUBT, FAINT, GOOD, INK, PAPER, Picture, arrow, drawing, label, tag

ALL_DRAWN = 24  # ranks; more than that: only those involved
SIZE, RADIUS = 320, 118


def ring(alarm: Alarm, accused: tuple[int, ...], name: str = "ring") -> Picture | None:
    """Ranks in a circle; mismatching comparisons are dashed red arrows, those of arbiters whole ones."""
    involved = _involved(alarm, accused)
    if not involved:
        return None
    small = alarm.world_size <= ALL_DRAWN
    shown = tuple(range(alarm.world_size)) if small else involved[:ALL_DRAWN]
    at = {rank: _place(i, len(shown)) for i, rank in enumerate(shown)}
    size = 17 if len(shown) <= 12 else 12
    colours = _colours(alarm, accused)
    lines = [
        arrow(at[p.replayer], at[p.target], BAD, size, "6 4")
        for p in alarm.pairs
        if p.replayer in at and p.target in at and p.replayer != p.target
    ]
    lines += [
        arrow(at[v.rank], at[c.target], colours.get(v.rank, FAINT), size, "1 0")
        for c in alarm.contests
        for v in c.votes
        if v.role == "arbiter" and v.rank in at and c.target in at and v.rank != c.target
    ]
    seats = [_seat(rank, at[rank], size, colours.get(rank)) for rank in shown]
    return drawing(name, "Who computed what", _text(alarm, accused, len(shown)), SIZE, SIZE, *lines, *seats)


def _involved(alarm: Alarm, accused: tuple[int, ...]) -> tuple[int, ...]:
    ranks = {*accused, *alarm.nonfinite_ranks}
    for pair in alarm.pairs:
        ranks |= {pair.replayer, pair.target}
    for contest in alarm.contests:
        ranks |= {contest.target, *(v.rank for v in contest.votes)}
    return tuple(sorted(r for r in ranks if 0 <= r < alarm.world_size))


def _place(i: int, count: int) -> tuple[float, float]:
    angle = 2 * math.pi * i / count - math.pi / 2
    return SIZE / 2 + RADIUS * math.cos(angle), SIZE / 2 + RADIUS * math.sin(angle)


def _colours(alarm: Alarm, accused: tuple[int, ...]) -> dict[int, str]:
    """Accused ranks are bad; of the others, who voted with the majority is good, who did not is in doubt."""
    colours = {}
    for contest in alarm.contests:
        for vote in contest.votes:
            agrees = contest.majority is not None and vote.result == contest.majority
            colours[vote.rank] = GOOD if agrees else DOUBT
    return colours | dict.fromkeys(accused, BAD)


def _seat(rank: int, at: tuple[float, float], size: int, colour: str | None) -> Markup:
    """A rank; the accused one is filled and has a second ring, so that it shows without colours."""
    bad = colour == BAD
    circle = tag(
        "circle", cx=at[0], cy=at[1], r=size,
        fill=BAD if bad else PAPER, stroke=colour or FAINT, stroke_width=3 if colour else 1,
    )  # fmt: skip
    if bad:
        circle += tag("circle", cx=at[0], cy=at[1], r=size + 5, fill="none", stroke=BAD, stroke_width=2)
    return circle + label(at[0], at[1] + 4, str(rank), PAPER if bad else INK)


def _text(alarm: Alarm, accused: tuple[int, ...], shown: int) -> str:
    said = [f"Rank {p.replayer} recomputed rank {p.target} and got other bits." for p in alarm.pairs[:4]]
    said += [_contest(c) for c in alarm.contests[:4]]
    if alarm.check is Check.WEIGHTS and accused:
        said.append(f"The weights of {_ranks(accused)} differ from those of a majority of replicas.")
    if alarm.nonfinite_ranks:
        said.append(f"NaN or Inf on {_ranks(alarm.nonfinite_ranks)}.")
    left = len(alarm.pairs[4:]) + len(alarm.contests[4:])
    if left:
        said.append(f"{left} more comparisons are in the raw evidence.")
    if alarm.pairs:
        said.append("Dashed arrows: recomputed with other bits; whole ones: asked to judge.")
    if shown < alarm.world_size:
        said.append(f"{shown} of {alarm.world_size} ranks are drawn.")
    return " ".join(said) or f"Accused: {_ranks(accused)}."


def _contest(contest: Contest) -> str:
    """One micro-batch, by what was computed for it; the strings are digests, and untrusted."""
    answers: dict[str, list[int]] = {}
    for vote in contest.votes:
        answers.setdefault(vote.result, []).append(vote.rank)
    groups = "; ".join(f"{_ranks(tuple(ranks))} computed {_digest(r)}" for r, ranks in answers.items())
    said = f"Micro-batch of rank {contest.target}: {groups}."
    if contest.target_repeats is None or not _alone(contest):
        return said
    again = "computes the same again" if contest.target_repeats else "computes what the others do"
    return f"{said} Asked again, rank {contest.target} {again}."


def _alone(contest: Contest) -> bool:
    own = [v.result for v in contest.votes if v.rank == contest.target]
    return bool(own) and sum(v.result == own[0] for v in contest.votes) == 1


def _digest(text: str) -> str:
    return "".join(c for c in text if c.isalnum() and c.isascii())[:12] or "?"


def _ranks(ranks: tuple[int, ...]) -> str:
    few = ", ".join(map(str, ranks[:8])) + (" and more" if len(ranks) > 8 else "")
    return f"rank {few}" if len(ranks) == 1 else f"ranks {few}"
