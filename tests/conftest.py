"""How the tests are shared out among the workers of `make test`: by file, and what waits most starts first.

A file stays together, because its tests share one launch of ranks, and so do the files that share the launch
of six; tests/workflow stays together, because its tests share one local cloud, and moto knows one cloud a
process.
"""

from __future__ import annotations

from typing import Any

import hypothesis
import pytest

# no test judges by the clock: a busy machine is no failure
hypothesis.settings.register_profile("no clock", deadline=None)
hypothesis.settings.load_profile("no clock")

SLOW = ("tests/workflow/", "tests/demo/", "tests/distributed/", "tests/matrix/", "tests/published/")
TOGETHER = ("tests/workflow/", "tests/distributed/test_guard")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    items.sort(key=lambda item: next((n for n, s in enumerate(SLOW) if item.nodeid.startswith(s)), len(SLOW)))


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    from xdist.scheduler import LoadScopeScheduling

    class ByFile(LoadScopeScheduling):  # type: ignore[misc,unused-ignore]
        def _split_scope(self, nodeid: str) -> str:
            return next((s for s in TOGETHER if nodeid.startswith(s)), nodeid.split("::", 1)[0])

    return ByFile(config, log)
