"""One alarm in words: whom it names and where that one sat, and what its suspect window means. Pure.

In: an `Alarm`. Out: sentences for `page`; nothing is asked of a pipeline.
"""

from __future__ import annotations

from collections.abc import Sequence

from ...contract import Alarm, Check, Place
from ..screen import duration

SHOWN_PLACES = 8


def named(alarm: Alarm) -> tuple[str, ...]:
    """Each named rank with node, instance and GPU; who was involved where nobody is named."""
    accused = {f.rank: f.place for f in alarm.findings if f.rank is not None}
    if accused:
        return tuple(
            f"rank {rank}" if place is None else seat(place) for rank, place in sorted(accused.items())
        )
    involved = _once([p for f in alarm.findings for p in f.involved])
    if not involved:
        return ("nobody",)
    more = (f"and {len(involved) - SHOWN_PLACES} more",) if len(involved) > SHOWN_PLACES else ()
    return ("nobody; involved:", *map(seat, involved[:SHOWN_PLACES]), *more)


def seat(place: Place) -> str:
    """Where a rank sat, as the alarm carries it."""
    instance = f", instance {place.instance_id}" if place.instance_id else ""
    gpu = place.gpu_uuid or f"number {place.local_rank}"
    return f"rank {place.rank}: node {place.node}{instance}, GPU {gpu}"


def window(alarm: Alarm, step_seconds: float | None = None) -> str:
    """The suspect steps, and how many updates a faulty GPU can have spoiled in them."""
    first, last = alarm.suspect_window
    steps = f"step {first}" if first == last else f"steps {first} to {last}"
    if _reproduced(alarm):
        return (
            f"{steps}: the alarm's own step was not applied, and healthy peers got the same NaN or Inf from "
            "the same batch. It is data or numerics, and says nothing against the updates before it"
        )
    after_update = alarm.check is Check.WEIGHTS and not alarm.pairs  # otherwise its step was not applied
    applied = 0 if alarm.of_reduction else last - first + int(after_update)
    if not applied:
        return f"{steps}: its update was not applied, so none was poisoned"
    lost = "" if step_seconds is None else f", about {duration(applied * step_seconds)} of training"
    return f"{steps}: at most {applied:,} poisoned update{'s' * (applied > 1)} were applied{lost}"


def of_audits(alarms: Sequence[Alarm]) -> int:
    """How many of them a comparison of replays has raised."""
    return sum(a.check is Check.REPLAY or bool(a.pairs) for a in alarms)


def _reproduced(alarm: Alarm) -> bool:
    return bool(alarm.findings) and all(f.of_data for f in alarm.findings) and not alarm.named_ranks


def _once(places: Sequence[Place]) -> list[Place]:
    return [p for _, p in sorted({p.rank: p for p in places}.items())]
