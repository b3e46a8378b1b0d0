"""What tests of the reconciler share: one look, and time that passes between two."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

from lambdas import handlers

from .drive import CONTEXT, Driver


def look(driver: Driver) -> dict[str, Any]:
    return handlers.reconcile({}, CONTEXT)


def later(driver: Driver, **by: float) -> None:
    driver.world.clock.at += timedelta(**by)
