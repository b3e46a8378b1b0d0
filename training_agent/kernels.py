"""Which kernels a run computes with, and so which ones its audits exercise. In: nothing. Out: vocabulary of
`Schedule` and the words for it.

Next: `_update` switches them around each step; manifests, alarms and `sdc report` say what was chosen.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import Enum
from typing import Any


class Kernels(str, Enum):
    """What runs between a step's first forward and its update; beyond it, always the user's own."""

    SWITCHED = "switched"  # deterministic ones on audited steps, the user's own on all others
    FORCED = "forced"  # deterministic ones on every step, attention included: what audits use is what trains
    DEFAULT = "default"  # the user's own on every step: audits compare the forward only

    @property
    def audited(self) -> str:
        """Which kernels audits exercise, for people."""
        return _AUDITED[self]


_AUDITED = {
    Kernels.SWITCHED: "deterministic ones of audited steps only",
    Kernels.FORCED: "those of every step, deterministic ones",
    Kernels.DEFAULT: "default ones, forward only",
}


def kernels_in(plan: object) -> Kernels | None:
    """What the "schedule" of a manifest says; None where it says nothing that is known here."""
    if not isinstance(plan, Mapping):
        return None
    found: Any = plan.get("kernels")
    if found is None and isinstance(plan.get("deterministic"), bool):  # before there were three ways
        return Kernels.SWITCHED if plan["deterministic"] else Kernels.DEFAULT
    return next((k for k in Kernels if k.value == found), None)


def change(step: int, before: object, now: object) -> str | None:
    """A sentence where a run goes on from `step` with other kernels than it had; plans of two manifests."""
    had, has = kernels_in(before), kernels_in(now)
    if had is None or has is None or had is has:
        return None
    return (
        f"steps up to {step} ran with kernels={had.value!r}, the ones from there on with {has.value!r}: the "
        "bits are not those of one run with either"
    )
