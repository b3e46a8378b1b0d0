"""One common start of a job's ranks in the hold, each in a thread."""

from __future__ import annotations

import threading
from datetime import timedelta
from pathlib import Path

from tests.patience import PATIENCE_S
from training_agent.errors import AgentError
from training_agent.hold import HoldResult, hold_while_quarantined
from training_agent.settings import Worker

from .builders import FakeAws, settings_of

QUICK = timedelta(seconds=0.05)


class Start:
    """One common start of `world` ranks, each in a thread."""

    def __init__(self, shared: Path, world: int = 4, aws: FakeAws | None = None, **changes: object) -> None:
        self.results: dict[int, HoldResult | AgentError] = {}
        self._shared = shared
        self._world = world
        self._aws = aws or FakeAws()
        if aws is not None:
            changes = {"quarantine_table": "quarantine", **changes}
        self._changes = changes
        self._threads: list[threading.Thread] = []

    def launch(self, *ranks: int) -> Start:
        for rank in ranks or range(self._world):
            self._threads.append(threading.Thread(target=self._one, args=(rank,), daemon=True))
            self._threads[-1].start()
        return self

    def finish(self) -> dict[int, HoldResult | AgentError]:
        for thread in self._threads:
            thread.join(PATIENCE_S)
            assert not thread.is_alive()
        return self.results

    def _one(self, rank: int) -> None:
        try:
            self.results[rank] = hold_while_quarantined(
                settings_of(self._shared, rank, **self._changes),
                worker=Worker(rank, rank % 2, self._world),
                poll=QUICK,
                heartbeat=QUICK,
                client=self._aws.factory,
            )
        except AgentError as e:
            self.results[rank] = e
