"""Raises the alarm, once for all: built, reported, and raised again at every later step.

Comes in: a `Sighting`. Goes out: `SdcAlarm`, on every rank alike. Next: the process ends (`exit_codes`).
"""

from __future__ import annotations

from datetime import timedelta
from typing import NoReturn

from . import _alarm
from ._alarm import Passes, Sighting
from ._startup import Setup
from .contract import Alarm, ExitCode, to_plain
from .errors import SdcAlarm
from .log_line import log_line
from .steady import steady

FAREWELL = timedelta(seconds=10)  # a launcher kills the siblings right after the first exit


class AlarmLatch:
    """Remembers the alarm: an `except Exception` in a loop must not swallow it."""

    def __init__(self, setup: Setup) -> None:
        self._setup = setup
        self._alarm: Alarm | None = None

    def trip(self, sighting: Sighting, passes: Passes, notes: tuple[str, ...] = ()) -> NoReturn:
        """Build and report the alarm, wait (bounded) until every rank has done so, raise.

        Raises:
            SdcAlarm: always.
        """
        setup = self._setup
        with steady(ExitCode.ALARM):
            self._alarm = _alarm.build(
                sighting, passes, setup.rank_map, setup.settings, setup.comm, setup.checkpoints, notes
            )
            if setup.reporter is not None:
                setup.reporter.alarm(self._alarm)
            else:
                log_line("alarm", rank=setup.comm.rank, alarm=to_plain(self._alarm))
            setup.comm.meet(f"sdc/alarm/{self._alarm.step}/{self._alarm.time}", FAREWELL)
        raise SdcAlarm(self._alarm, _alarm.message(self._alarm))

    def raise_again(self) -> None:
        """Raise the alarm that was raised before, if any."""
        if self._alarm is not None:
            raise SdcAlarm(self._alarm, _alarm.message(self._alarm))
