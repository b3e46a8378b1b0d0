"""The fire drill: a synthetic alarm that takes the way of a real one, from the bus to the people, to its end.

In: a schedule. Out: an "SDC Alarm" event about a node that no cluster has; the incident it opens is marked
synthetic, touches nothing and can never replace (`ingest.is_drill` says how it is recognised).
"""

from __future__ import annotations

from dataclasses import dataclass

from training_agent.contract import (
    Alarm,
    Check,
    Finding,
    FindingKind,
    Independence,
    Job,
    Place,
    ResumePoint,
    Verdict,
    encode,
)

from ..domain.drill import DRILL_INSTANCE, DRILL_JOB, DRILL_NODE, DRILL_PREFIX
from ..domain.times import stamp
from ..ports import Bus, Clock
from ..settings import DrillSettings


@dataclass(frozen=True, slots=True)
class Needs:
    settings: DrillSettings
    bus: Bus
    clock: Clock


def run(needs: Needs) -> str:
    """Publish one; returns the job uid of this drill."""
    now = stamp(needs.clock.now())
    job = Job(DRILL_JOB, f"{DRILL_PREFIX}{now}")
    place = Place(0, 0, DRILL_NODE, DRILL_INSTANCE, None)
    finding = Finding(
        FindingKind.PAIR,
        rank=0,
        place=place,
        verdict=Verdict.PERSISTENT,
        evidence="a fire drill: no GPU is accused",
    )
    alarm = Alarm(
        cluster=needs.settings.cluster_name,
        job=job,
        check=Check.REPLAY,
        step=1,
        time=now,
        findings=(finding,),
        suspect_window=(1, 1),
        world_size=3,
        nodes=3,
        independence=Independence.NODE,
        resume_from=ResumePoint(0, "none"),
    )
    needs.bus.alarm(encode(alarm))
    return job.uid
