"""Who must not compute: `quarantine.json` in the job's shared folder, and the rows of the quarantine table.

The agent writes the file (fsync) on an alarm; `lambdas.steps.contain` writes the table, `resume` releases it;
every starting rank reads both before it joins (`training_agent.hold`).
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

from .alarm import ResumePoint
from .names import SCHEMA_VERSION

QUARANTINE_FILE = "quarantine.json"


class QuarantineState(str, Enum):
    """State of a table row; a file's entry counts as held until the table says released."""

    HELD = "held"
    RELEASED = "released"


class Mode(str, Enum):
    """How far the pipeline may go; each mode includes the ones before it."""

    OBSERVE = "observe"
    CONTAIN = "contain"
    REPLACE = "replace"


@dataclass(frozen=True, slots=True)
class QuarantineEntry:
    """One suspect. With neither instance nor GPU the whole job is held (nobody was named)."""

    delivery_key: str  # of the alarm in that attempt, see `codec.occurrence_key`
    instance_id: str | None
    gpu_uuid: str | None
    suspect_window: tuple[int, int]
    resume_from: ResumePoint | None
    time: str  # UTC, ISO 8601 with Z


@dataclass(frozen=True, slots=True)
class QuarantineFile:
    """The job's own record; entries are only ever added."""

    entries: tuple[QuarantineEntry, ...] = ()
    schema_version: str = SCHEMA_VERSION


def instance_subject(instance_id: str) -> str:
    """Partition key of an instance's row in the quarantine table."""
    return f"instance#{instance_id}"


def gpu_subject(gpu_uuid: str) -> str:
    """Partition key of a GPU's row in the quarantine table: it follows the GPU across jobs."""
    return f"gpu#{gpu_uuid}"


def job_subject(job_uid: str) -> str:
    """Partition key of a job's row in the quarantine table (nobody named, the job waits)."""
    return f"job#{job_uid}"


MODE_SUBJECT = "mode"  # the row that carries the pipeline's mode; in observe mode nobody holds
