"""Is it hardware? What the alarms of several starts say together.

In: the alarms in the job's spool. Out: `Reproducible` when the same step failed on different nodes: then it
follows the data or the code, and another restart only repeats it. Asked by `hold` on rank 0 before anybody
joins; the job then ends with exit code 6 until a person has looked (`sdc clear --reproducible`).

The step alone proves nothing: a persistent fault fails at the same audit again and again. It must have failed
on nodes and GPUs that have nothing in common, or each time by evidence that it is no single GPU's: several of
them do alike, wherever they stand.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from ._alarm_text import batches_to_look_at
from .checkpoint import CheckpointStore
from .contract import Alarm, ResumePoint
from .errors import AgentError
from .log_line import utc_now
from .shared_files import write_atomic
from .spool import Spool, name_of

ACKNOWLEDGED_FILE = "reproducible-acknowledged.json"


@dataclass(frozen=True, slots=True)
class Reproducible:
    """The same step, elsewhere again."""

    first: Alarm
    again: Alarm
    older: ResumePoint | None  # a checkpoint from before the one that was resumed from

    @property
    def text(self) -> str:
        """What happened, and what to do next."""
        there, here = (where(a) for a in (self.first, self.again))
        batches = batches_to_look_at(self.again)
        if self.older is not None:
            older = f"try an older checkpoint: step {self.older.step}, {self.older.path}"
        else:
            older = "no older checkpoint is known"
        proposal = f"Next: {batches or 'look at the batch and the code of that step'}; {older}"
        return (
            f"Step {self.again.step} failed the same check ({self.again.check.value}) {there} in attempt "
            f"{self.first.job.attempt} and {here} in attempt {self.again.job.attempt}: that follows the data "
            f"or the code, not a GPU. {proposal}; then say so with `sdc clear --reproducible --reason ...`, "
            "and start again."
        )


def where(alarm: Alarm) -> str:
    """The nodes of an alarm, in words."""
    if _everywhere(alarm):
        return "on several GPUs alike"
    nodes = sorted({p.node for f in alarm.findings for p in (*f.involved, *((f.place,) if f.place else ()))})
    return f"on {', '.join(nodes[:3])}" if nodes else "on several nodes at once"


def judge(alarms: Sequence[Alarm]) -> tuple[Alarm, Alarm] | None:
    """The newest alarm and an earlier start's that it repeats elsewhere; None: nothing says software."""
    if not alarms:
        return None
    newest = max(alarms, key=lambda a: (a.job.attempt, a.time))
    for earlier in sorted(alarms, key=lambda a: (a.job.attempt, a.time)):
        same = (earlier.check, earlier.step, earlier.job.uid) == (newest.check, newest.step, newest.job.uid)
        if same and earlier.job.attempt < newest.job.attempt and _elsewhere(earlier, newest):
            return earlier, newest
    return None


def look(shared_dir: Path) -> Reproducible | None:
    """Judge the job's spool, without what a person has acknowledged.

    Raises:
        OSError: the folder cannot be read.
    """
    known = _acknowledged(shared_dir)
    alarms = [a for a in Spool(shared_dir / "spool").alarms() if name_of(a) not in known]
    found = judge(alarms)
    return None if found is None else Reproducible(*found, older=_older(found[1].resume_from))


def acknowledge(shared_dir: Path, reason: str) -> int:
    """A person has looked: alarms so far count no more. How many that are.

    Raises:
        OSError: the folder cannot be written.
    """
    names = sorted(name_of(a) for a in Spool(shared_dir / "spool").alarms())
    note = {"alarms": names, "reason": reason, "at": utc_now()}
    write_atomic(shared_dir / ACKNOWLEDGED_FILE, json.dumps(note, sort_keys=True).encode())
    return len(names)


def _acknowledged(shared_dir: Path) -> frozenset[str]:
    try:
        note = json.loads((shared_dir / ACKNOWLEDGED_FILE).read_bytes())
        return frozenset(map(str, note["alarms"]))
    except (FileNotFoundError, ValueError, KeyError, TypeError):
        return frozenset()


def _elsewhere(one: Alarm, other: Alarm) -> bool:
    if _everywhere(one) or _everywhere(other):
        return _everywhere(one) and _everywhere(other)
    mine, theirs = _suspects(one), _suspects(other)
    return bool(mine and theirs) and not mine & theirs


def _suspects(alarm: Alarm) -> frozenset[str]:
    """Names of where it may be hardware; those whose batch it was, or who agree with others, are none."""
    found = [f for f in alarm.findings if not f.no_gpu]
    places = [p for f in found for p in (*f.involved, *((f.place,) if f.place else ()))]
    return frozenset(name for p in places for name in (p.node, p.instance_id, p.gpu_uuid) if name)


def _everywhere(alarm: Alarm) -> bool:
    """By its own evidence it is no single GPU, whoever was involved."""
    return bool(alarm.findings) and all(f.no_gpu for f in alarm.findings)


def _older(resumed_from: ResumePoint | None) -> ResumePoint | None:
    if resumed_from is None:
        return None
    try:
        store = CheckpointStore(Path(resumed_from.path).parent, world_size=0)
        older = store.newest(before=resumed_from.step)
    except (OSError, AgentError):
        return None
    return None if older is None else ResumePoint(older.step, str(older.path))
