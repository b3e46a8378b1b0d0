"""When a start tells the pipeline where its ranks run, and that no comparison is blind."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor

from training_agent import _start, _startup
from training_agent._start import Start
from training_agent.errors import ConfigurationError


class Heard:
    """A reporter that keeps what it hears."""

    def __init__(self) -> None:
        self.starts: list[Any] = []

    def started(self, registration: Any) -> None:
        self.starts.append(registration)


@pytest.fixture
def start(monkeypatch: pytest.MonkeyPatch) -> tuple[Start, Heard]:
    monkeypatch.setattr(_start, "registration", lambda setup, resumed_from: resumed_from)
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


class Replicas:
    """Two ranks, as the first one sees them; `sees` turns whether words are equal into the answer."""

    world, is_first = 2, True

    def __init__(self, sees: Callable[[bool], bool], theirs: int = 1) -> None:
        self._sees, self._theirs = sees, theirs
        self._words: Tensor | None = None

    def all_equal(self, words: Tensor) -> bool:
        if self._words is None:
            self._words = words
        return self._sees(torch.equal(words, self._words))

    def total(self, counts: list[int]) -> list[int]:
        return [counts[0] + self._theirs]


def test_a_comparison_that_sees_a_flipped_bit_is_accepted() -> None:
    _startup.self_test(Replicas(lambda equal: equal), torch.device("cpu"))  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("blind", "ranks"),
    [
        (Replicas(lambda _: True), "1 of 2"),
        (Replicas(lambda _: False), "1 of 2"),
        (Replicas(lambda equal: equal, theirs=0), "1 of 2"),
        (Replicas(lambda _: True, theirs=0), "2 of 2"),
    ],
    ids=["sees nothing", "sees ghosts", "the other one is blind", "both are blind"],
)
def test_a_comparison_that_is_blind_on_any_rank_is_refused(blind: Any, ranks: str) -> None:
    with pytest.raises(ConfigurationError, match=f"digest comparison failed on {ranks} ranks"):
        _startup.self_test(blind, torch.device("cpu"))
