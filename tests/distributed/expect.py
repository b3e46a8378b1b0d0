"""What must hold for every scenario's results, and for every alarm in them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from training_agent.contract import Alarm, decode

Results = list[dict[str, Any]]  # per rank
Scenario = Callable[[str], Results]
VARIANTS = ("static graph", "bucket views", "fp16 hook")


def alarm_in(results: Results, *, applied: bool = False) -> Alarm:
    """The alarm, after checking what must hold for every alarm."""
    assert len({r["alarm"] for r in results}) == 1, "the alarm is not the same object on all ranks"
    for r in results:
        assert r["alarm"] is not None
        assert r["gradients_dropped"]
        assert r["latched"]
        assert not r["notes"]["deterministic left on"]
        assert applied or r["before"] == r["after"], "weights, moments or RNG moved"
    return decode(Alarm, results[0]["alarm"])


def the_alarm(results: Results) -> Alarm:
    """One and the same on all ranks."""
    assert len({r["alarm"] for r in results}) == 1
    assert results[0]["alarm"] is not None, results[0].get("error")
    return decode(Alarm, results[0]["alarm"])


def assert_quiet(results: Results) -> None:
    assert [r["message"] for r in results] == [""] * len(results)


def trained(results: Results) -> list[tuple[str, str]]:
    return [(r["weights"], r["moments"]) for r in results]
