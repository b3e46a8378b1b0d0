"""Raises the alarm, once for all: built, reported, and raised again at every later step.

Comes in: a `Sighting`. Goes out: `SdcAlarm`, on every rank alike. Next: the process ends (`exit_codes`).
"""

from __future__ import annotations

from datetime import timedelta
from typing import NoReturn

from . import _alarm
from ._alarm import Passes, Sighting
from ._comm import Comm
from .checkpoint import CheckpointStore
from .contract import Alarm, to_plain
from .errors import SdcAlarm
from .log_line import log_line
from .placement import RankMap
from .report import Reporter
from .settings import AgentSettings

FAREWELL = timedelta(seconds=10)  # a launcher kills the siblings right after the first exit


class AlarmLatch:
    """Remembers the alarm: an `except Exception` in a loop must not swallow it."""

    def __init__(
        self,
        comm: Comm,
        rank_map: RankMap,
        settings: AgentSettings,
        reporter: Reporter | None,
        checkpoints: CheckpointStore | None,
    ) -> None:
        self._comm, self._rank_map, self._settings = comm, rank_map, settings
        self._reporter, self._checkpoints = reporter, checkpoints
        self._alarm: Alarm | None = None

    def trip(self, sighting: Sighting, passes: Passes) -> NoReturn:
        """Build and report the alarm, wait (bounded) until every rank has done so, raise.

        Raises:
            SdcAlarm: always.
        """
        self._alarm = _alarm.build(
            sighting, passes, self._rank_map, self._settings, self._comm, self._checkpoints
        )
        if self._reporter is not None:
            self._reporter.alarm(self._alarm)
        else:
            log_line("alarm", rank=self._comm.rank, alarm=to_plain(self._alarm))
        self._comm.meet(f"sdc/alarm/{self._alarm.step}/{self._alarm.time}", FAREWELL)
        raise SdcAlarm(self._alarm, _alarm.message(self._alarm))

    def raise_again(self) -> None:
        """Raise the alarm that was raised before, if any."""
        if self._alarm is not None:
            raise SdcAlarm(self._alarm, _alarm.message(self._alarm))
