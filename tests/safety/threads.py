"""Eight threads at once: handlers without their one-per-process decorators, and a scheduler that interferes.

Powertools keeps one metrics buffer per process, as a Lambda has; threads of a test must not share it.
"""

from __future__ import annotations

import inspect
import random
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any

import pytest

from lambdas import approval_page, handlers

from .plant import Plant

THREADS = 8
RACED = (
    (handlers, ("ingest", "locate", "contain", "request_approval", "replace", "resume")),
    (approval_page, ("decide", "show")),
)


def _nothing(*_: Any, **__: Any) -> None:
    """Neither counts nor prints."""


def unshared(monkeypatch: pytest.MonkeyPatch) -> None:
    """Handlers as they are, without logger context and metrics buffer."""
    silent = SimpleNamespace(add_metric=lambda *a, **k: None, set_default_dimensions=lambda **k: None)
    monkeypatch.setattr(handlers, "metrics", silent)
    for module, names in RACED:
        for name in names:
            monkeypatch.setattr(module, name, inspect.unwrap(getattr(module, name)))


@contextmanager
def interference(plant: Plant, seed: int) -> Iterator[None]:
    """Before each port call a thread may lose its turn."""
    rng = random.Random(seed)
    plant.wires.pause = lambda: time.sleep(rng.choice((0, 0, 0, 0.0005)))
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-5)
    try:
        yield
    finally:
        sys.setswitchinterval(before)
        plant.wires.pause = lambda: None


def together(calls: Sequence[Callable[[], Any]]) -> list[Any]:
    """Run all at once; answers and exceptions in the order of the calls."""

    def one(call: Callable[[], Any]) -> Any:
        try:
            return call()
        except Exception as e:  # noqa: BLE001  # an error is an answer here, judged by the test
            return e

    with ThreadPoolExecutor(THREADS) as pool:
        return list(pool.map(one, calls))
