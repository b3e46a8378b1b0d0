"""Events by the thousand: valid ones, duplicates, broken ones, stale and forged ones, in a seeded shuffle.

In: a plant and a seed. Out: the bodies of the messages, and what each kind must lead to.
"""

from __future__ import annotations

import json
import random
from collections.abc import Callable
from dataclasses import dataclass, replace
from datetime import timedelta
from typing import Any

from lambdas.domain.findings import group
from lambdas.domain.times import stamp
from tests.events import builder
from training_agent.contract import Alarm, Check, Finding, FindingKind, Verdict, delivery_key

from .plant import Plant

VALID, DUPLICATE, MALFORMED = 0.4, 0.3, 0.2  # the rest is stale or forged


@dataclass(frozen=True)
class Event:
    """One message; `keys`: the (delivery key, node) of the executions it may start."""

    body: str
    kind: str
    keys: tuple[tuple[str, str | None], ...] = ()
    job_uid: str = ""


def events(plant: Plant, count: int, seed: int) -> list[Event]:
    """`count` events in random order; a duplicate may come before what it repeats."""
    rng = random.Random(seed)
    made: list[Event] = []
    valid: list[Event] = []
    for n in range(count):
        dice = rng.random()
        if dice < VALID or not valid:
            event = _event(_valid(plant, rng, n), "valid")
            valid.append(event)
        elif dice < VALID + DUPLICATE:
            event = replace(rng.choice(valid), kind="duplicate")
        elif dice < VALID + DUPLICATE + MALFORMED:
            event = Event(rng.choice(BREAKERS)(rng.choice(valid).body, rng), "malformed")
        else:
            event = _bad(plant, rng, n)
        made.append(event)
    rng.shuffle(made)
    return made


def _event(alarm: Alarm, kind: str, **envelope: Any) -> Event:
    keys = tuple((delivery_key(alarm), g.node) for g in group(alarm))
    return Event(json.dumps(builder.event(alarm, **envelope)), kind, keys, alarm.job.uid)


def _valid(plant: Plant, rng: random.Random, n: int) -> Alarm:
    job = rng.choice(plant.jobs)
    rank = rng.randrange(len(job.seats))
    make: list[Callable[[], Finding]] = [
        lambda: builder.culprit(rank, job.seats),
        lambda: builder.culprit(rank, job.seats, majority=False),
        lambda: builder.weights(rank, job.seats),
        lambda: builder.pair(rank, rng.choice(list(Verdict)), job.seats),
        lambda: Finding(FindingKind.REDUCED),
        lambda: Finding(FindingKind.SOFTWARE, involved=job.seats[:2]),
    ]
    return plant.alarm_of(rng.choice(make)(), job=job, step=1000 + n, check=rng.choice(list(Check)))


def _bad(plant: Plant, rng: random.Random, n: int) -> Event:
    """Stale, from the future, of another cluster, replayed: rejected. Forged: opened, and nothing touched."""
    alarm = _valid(plant, rng, n)
    now = plant.world.clock.at
    rejected = [
        lambda: _event(replace(alarm, time=stamp(now - timedelta(hours=25))), "stale"),
        lambda: _event(replace(alarm, time=stamp(now + timedelta(days=2))), "stale"),
        lambda: _event(replace(alarm, cluster="another"), "stale"),
        lambda: _event(alarm, "stale", **{"replay-name": "again"}),
    ]
    if rng.random() < 0.5:
        return replace(rng.choice(rejected)(), keys=())
    return _event(forged(plant, rng, n), "forged")


def forged(plant: Plant, rng: random.Random, n: int) -> Alarm:
    """A job that never registered accuses a rank of another one, or a job a node where it has no pod."""
    victim, accuser = rng.sample(plant.jobs, 2)
    seat = rng.choice(victim.seats)
    job = replace(accuser.job, uid=f"forged-{n}")
    return plant.alarm_of(builder.culprit(seat.rank, victim.seats), job=replace(accuser, job=job), step=n + 1)


def _truncated(body: str, rng: random.Random) -> str:
    return body[: rng.randrange(len(body))]


def _detail(change: Callable[[dict[str, Any], random.Random], object]) -> Callable[[str, random.Random], str]:
    def broken(body: str, rng: random.Random) -> str:
        event = json.loads(body)
        change(event["detail"], rng)
        return json.dumps(event)

    return broken


BREAKERS: list[Callable[[str, random.Random], str]] = [
    _truncated,
    lambda body, rng: "",
    lambda body, rng: "[" * 100_000,
    lambda body, rng: "null",
    lambda body, rng: body.replace('"step": ', '"step": 1, "step": ', 1),
    lambda body, rng: body.replace('"step": ', '"step": NaN, "other": ', 1),
    lambda body, rng: body.replace("SDC Alarm", "SDC Something"),
    _detail(lambda d, rng: d.pop(rng.choice(["job", "check", "step", "time", "findings", "cluster"]))),
    _detail(lambda d, rng: d.update({rng.choice(["step", "world_size"]): rng.choice(["x", None, [], 1.5])})),
    _detail(lambda d, rng: d.update(findings=rng.choice([{}, "x", [1], [[]], None]))),
    _detail(lambda d, rng: d.update(check="guess")),
    _detail(lambda d, rng: d.update(time=rng.choice(["yesterday", "", 5, "2026-01-01T00:00:00"]))),
    _detail(lambda d, rng: d.update(padding="x" * 70_000)),
    _detail(lambda d, rng: d["job"].update(uid=rng.choice(["", 7, None, "\ud800"]))),
    _detail(lambda d, rng: d.update(schema_version=rng.choice(["2.0", "x", 1]))),
]
