"""What the end of a process may still ask the other ranks, and when they are not there to answer."""

from __future__ import annotations

import gc
from collections.abc import Callable
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch.amp import GradScaler

from tests.unit.report.builders import an_alarm
from training_agent import _farewell
from training_agent._alarm import Sighting
from training_agent._farewell import Farewell
from training_agent._gate import Tally
from training_agent.contract import Check, ExitCode
from training_agent.errors import PeerLostError, SdcAlarm


@dataclass
class Step:
    """An update of which this rank has seen so many forwards and backwards; its gradients are NaN."""

    forwards: int
    backwards: int
    sharding: Any = None
    reduced: bool = True
    deferred: bool = False
    others_come: bool = True
    ledger: Any = field(default_factory=lambda: SimpleNamespace(step=4))
    judged: list[str] = field(default_factory=list)

    @property
    def watch(self) -> Any:
        return SimpleNamespace(open=True, batches=[None] * self.forwards)

    @property
    def norms(self) -> Any:
        return SimpleNamespace(backwards=self.backwards, left_nonfinite=lambda: True)

    @property
    def setup(self) -> Any:
        outer = SimpleNamespace(require_forward_param_sync=self.reduced)
        cpu = torch.device("cpu")
        comm = SimpleNamespace(meet=lambda key, timeout: self.others_come)
        return SimpleNamespace(comm=comm, outer=outer, sharding=self.sharding, device=cpu, optimizers=(None,))

    def before(self, _optimizer: Any) -> None:
        self.judged.append("before")

    def drain(self) -> None:
        self.judged.append("drain")

    def skipped_by_loop(self) -> None:
        self.judged.append("skipped")


@pytest.fixture(autouse=True, scope="module")
def no_scalers_of_other_tests() -> None:
    gc.collect()


@pytest.mark.parametrize(
    "step",
    [Step(1, 1), Step(3, 3), Step(1, 1, others_come=False), Step(1, 1, deferred=True)],
    ids=["one", "three", "others at the update", "deferred, all fail"],
)
def test_a_step_whose_gradients_are_whole_is_judged(step: Step) -> None:
    Farewell(step).judge_open_step()  # type: ignore[arg-type]
    assert step.judged == ["before", "drain"]


@pytest.mark.parametrize(
    "step",
    [
        Step(1, 0),
        Step(2, 1),
        Step(1, 1, reduced=False),
        Step(1, 1, sharding="a mesh"),
        Step(1, 1, deferred=True, others_come=False),
    ],
    ids=["first forward", "another forward or its backward", "between micro-batches", "shards", "deferred"],
)
def test_a_rank_that_fails_while_the_others_compute_asks_them_nothing(step: Step) -> None:
    Farewell(step).judge_open_step()  # type: ignore[arg-type]
    assert step.judged == []


# a GradScaler: overflows are its daily business


@pytest.mark.parametrize("deferred", [False, True])
def test_a_loop_that_dies_on_an_overflow_before_its_scaler_could_skip_it_raises_no_alarm(
    deferred: bool,
) -> None:
    scaler, step = GradScaler("cpu"), Step(1, 1, deferred=deferred)
    Farewell(step).judge_open_step()  # type: ignore[arg-type]
    assert step.judged == ["drain", "skipped"] and scaler.is_enabled()


def test_a_scaler_that_is_switched_off_explains_nothing() -> None:
    scaler, step = GradScaler("cpu", enabled=False), Step(1, 1)
    Farewell(step).judge_open_step()  # type: ignore[arg-type]
    assert step.judged == ["before", "drain"] and not scaler.is_enabled()


def raises(error: Exception) -> Callable[[], None]:
    def drain() -> None:
        raise error

    return drain


def at_the_end(
    monkeypatch: pytest.MonkeyPatch, tally: Tally, error: Exception
) -> tuple[list[Sighting], list[int]]:
    """Deferred mode's last flags, read when a collective ends in `error`: (alarms, exit codes)."""
    alarms: list[Sighting] = []
    codes: list[int] = []

    def alarm(sighting: Sighting) -> None:
        alarms.append(sighting)
        raise SdcAlarm(an_alarm(), "the alarm")

    pending = SimpleNamespace(count=SimpleNamespace(read=lambda: tally), record=SimpleNamespace(step=5))
    update: Any = SimpleNamespace(pending=pending, drain=raises(error), alarm=alarm)
    monkeypatch.setattr(_farewell.exit_codes, "leave", codes.append)
    Farewell(update).judge_last_step()
    return alarms, codes


def test_an_overflow_of_the_last_step_asks_nobody_and_is_no_alarm(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    gone = PeerLostError("the group was destroyed")
    assert at_the_end(monkeypatch, Tally(nonfinite=1, reduced=3, overflow=3), gone) == ([], [])
    asked = AssertionError("a collective, while the other ranks may be in one of the loop's")
    assert at_the_end(monkeypatch, Tally(nonfinite=1, reduced=3, overflow=3), asked) == ([], [])
    alarms, codes = at_the_end(monkeypatch, Tally(nonfinite=1, reduced=3, overflow=0), gone)
    assert [a.check for a in alarms] == [Check.NONFINITE] and codes == [ExitCode.ALARM]
