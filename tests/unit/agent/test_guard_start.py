"""When a start tells the pipeline where its ranks run."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from training_agent import _startup
from training_agent._start import Start


class Heard:
    """A reporter that keeps what it hears."""

    def __init__(self) -> None:
        self.starts: list[Any] = []

    def started(self, registration: Any) -> None:
        self.starts.append(registration)


@pytest.fixture
def start(monkeypatch: pytest.MonkeyPatch) -> tuple[Start, Heard]:
    monkeypatch.setattr(_startup, "registration", lambda setup, resumed_from: resumed_from)
    heard: Any = Heard()
    unused: Any = None
    return Start(SimpleNamespace(reporter=heard), unused, unused, unused, unused), heard  # type: ignore[arg-type]


def test_a_job_that_resumed_from_step_0_says_0_not_nothing(start: tuple[Start, Heard]) -> None:
    start[0].register(0)
    assert start[1].starts == [0]


def test_each_start_registers_once(start: tuple[Start, Heard]) -> None:
    start[0].register(20)
    start[0].register(None)
    assert start[1].starts == [20]
