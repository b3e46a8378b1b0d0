"""What one check of `sdc doctor` says. Used by `doctor` and its modules; rendered by `app`."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum


class Status(str, Enum):
    """How a check ended."""

    OK = "ok"
    NOTE = "note"  # nothing is wrong; worth knowing
    FAILED = "failed"
    SKIPPED = "skipped"


@dataclass(frozen=True, slots=True)
class Check:
    """One line of the report; a failed one has a remedy."""

    name: str  # also what --skip takes
    status: Status
    found: str
    remedy: str = ""
