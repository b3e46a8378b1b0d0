"""How a fire drill's alarm is recognised. Pure; used by `drill`, which makes it, and by `ingest`."""

from __future__ import annotations

from training_agent.contract import Alarm

DRILL_PREFIX = "drill-"
DRILL_JOB = "fire-drill"
DRILL_INSTANCE = "i-" + "0" * 17  # well formed, and no instance has it
DRILL_NODE = f"hyperpod-{DRILL_INSTANCE}"


def is_drill(alarm: Alarm) -> bool:
    """Everything about it is the drill's: job, and the one node that no cluster has.

    A forged drill can only cost a mail: a synthetic incident touches nothing.
    """
    nodes = {f.place.node for f in alarm.findings if f.place is not None}
    named = alarm.job.uid.startswith(DRILL_PREFIX) and alarm.job.name == DRILL_JOB
    return named and nodes == {DRILL_NODE}
