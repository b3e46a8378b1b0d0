"""What a run of the example trains; needs no torch."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True)
class TrainConfig:
    """One run; intervals in steps."""

    out: Path  # weights and hashes at the end, and at an alarm
    steps: int = 60
    seed: int = 0
    audit_every: int = 10
    check_every: int = 10
    checkpoint_every: int = 10
