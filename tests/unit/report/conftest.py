"""Each test plays a process of its own: nothing has been warned of yet."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from training_agent import warn_once


@pytest.fixture(autouse=True)
def nothing_said() -> Iterator[None]:
    warn_once.forget()
    yield
    warn_once.forget()
