"""What the GPUs' counters say around an alarm: lines for people, never a verdict.

In: readings of `ports.Telemetry`. Out: one line per measure. Clean telemetry does not exonerate a node, and
no data says nothing.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum


class Measure(str, Enum):
    """Metric names of NVIDIA's DCGM exporter, which the observability add-on scrapes."""

    ECC_DOUBLE_BIT = "DCGM_FI_DEV_ECC_DBE_VOL_TOTAL"
    ECC_SINGLE_BIT = "DCGM_FI_DEV_ECC_SBE_VOL_TOTAL"
    PCIE_REPLAYS = "DCGM_FI_DEV_PCIE_REPLAY_COUNTER"
    XID = "DCGM_FI_DEV_XID_ERRORS"
    TEMPERATURE = "DCGM_FI_DEV_GPU_TEMP"
    THROTTLING = "DCGM_FI_DEV_CLOCK_THROTTLE_REASONS"


_TEXT = {
    Measure.ECC_DOUBLE_BIT: "uncorrected ECC errors",
    Measure.ECC_SINGLE_BIT: "corrected ECC errors",
    Measure.PCIE_REPLAYS: "PCIe replays",
    Measure.XID: "last Xid",
    Measure.TEMPERATURE: "highest temperature in C",
    Measure.THROTTLING: "throttle reasons (bits)",
}


@dataclass(frozen=True, slots=True)
class Reading:
    """One measure on the accused GPUs, half an hour around the alarm."""

    measure: Measure
    value: float | None  # the highest; None: no data
    points: tuple[float, ...] = ()  # the highest of each minute, oldest first; minutes without data left out

    @property
    def name(self) -> str:
        return _TEXT[self.measure]


def lines(readings: Sequence[Reading] | None) -> tuple[str, ...]:
    """One line per measure, also for those without data; None: telemetry is not configured."""
    if readings is None:
        return ("no telemetry is configured for these GPUs: that says nothing about them",)
    if all(r.value is None for r in readings):
        return ("telemetry holds no data for these GPUs around the alarm: that says nothing about them",)
    return tuple(f"{r.name}: {'no data' if r.value is None else format(r.value, 'g')}" for r in readings)
