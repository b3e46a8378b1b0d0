"""How long tests wait for what must come: a busy machine brings it late, and a green test waits no longer."""

from __future__ import annotations

import time
from collections.abc import Callable

PATIENCE_S = 120.0  # below the limit of a whole test, in pyproject.toml


def eventually(condition: Callable[[], bool]) -> None:
    """Wait for another thread or process."""
    deadline = time.monotonic() + PATIENCE_S
    while not condition():
        assert time.monotonic() < deadline, f"it did not happen within {PATIENCE_S:g} s"
        time.sleep(0.005)
