"""The three choices of kernels: how they are asked for, said, and read back."""

from __future__ import annotations

import json
import warnings
from typing import Any

import pytest

from training_agent.errors import ConfigurationError
from training_agent.kernels import Kernels, change, kernels_in
from training_agent.schedule import Schedule, ScheduleWarning


def schedule(kernels: Any, **options: Any) -> Schedule:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ScheduleWarning)
        return Schedule(kernels=kernels, **options)


@pytest.mark.parametrize(
    ("kernels", "ordinary", "audited", "replays"),
    [("switched", False, True, True), ("forced", True, True, True), ("default", False, False, False)],
)
def test_who_runs_deterministic_kernels(kernels: str, ordinary: bool, audited: bool, replays: bool) -> None:
    s = schedule(kernels)
    assert (s.deterministic_step(audit=False), s.deterministic_step(audit=True)) == (ordinary, audited)
    assert s.deterministic is replays


def test_an_unknown_choice_is_refused_with_those_that_there_are() -> None:
    with pytest.raises(ConfigurationError, match=r"kernels='math'.*'switched', 'forced', 'default'"):
        schedule("math")


def test_the_gap_of_default_kernels_is_named() -> None:
    with pytest.warns(ScheduleWarning, match="kernels='default': finite faults of the backward"):
        Schedule(kernels=Kernels.DEFAULT)
    assert Schedule(kernels=Kernels.FORCED).gaps == ()


@pytest.mark.parametrize("kernels", list(Kernels))
def test_a_manifest_gives_the_choice_back(kernels: Kernels) -> None:
    assert kernels_in(json.loads(json.dumps(schedule(kernels).plain()))) is kernels


@pytest.mark.parametrize(
    ("plan", "kernels"),
    [
        ({"deterministic": True}, Kernels.SWITCHED),
        ({"deterministic": False}, Kernels.DEFAULT),
        ({"audit_every": 10}, None),
        ({"kernels": "of a later version"}, None),
        ({"kernels": ["forced"]}, None),
        ("forced", None),
        (None, None),
    ],
    ids=repr,
)
def test_what_other_versions_wrote_is_read_or_says_nothing(plan: object, kernels: Kernels | None) -> None:
    assert kernels_in(plan) is kernels


def test_only_another_choice_is_a_change() -> None:
    forced, switched = schedule("forced").plain(), schedule("switched").plain()
    assert change(40, forced, forced) is None and change(40, None, forced) is None
    said = change(40, {"deterministic": True}, forced)
    assert said == change(40, switched, forced)
    assert said is not None and said.startswith("steps up to 40 ran with kernels='switched'")
