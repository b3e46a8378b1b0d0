"""Raises the alarm, once for all: built, reported, and raised again at every later step.

Comes in: a `Sighting`, and what this rank holds of the step. Goes out: `SdcAlarm`, on every rank alike, and a
repro capsule. Next: the process ends (`exit_codes`).
"""

from __future__ import annotations

import time
from datetime import timedelta
from pathlib import Path
from typing import NoReturn

from . import _alarm, _preflight_only
from ._alarm import Sighting
from ._alarm_text import message
from ._ledger import Ledger
from ._replayer import Replayer
from ._ring import RingResult
from ._startup import Setup
from ._trail import Trail
from .capsule.record import Exhibit, Scene, Sealed, seal, trail_file, write_all
from .checks.nonfinite import read_locally
from .contract import Alarm, Check, ExitCode, to_plain
from .errors import SdcAlarm
from .log_line import log_line
from .steady import steady

FAREWELL = timedelta(seconds=10)  # a launcher kills the siblings right after the first exit


class AlarmLatch:
    """Remembers the alarm: an `except Exception` in a loop must not swallow it."""

    def __init__(self, setup: Setup, replayer: Replayer) -> None:
        self._setup, self._replayer = setup, replayer
        self._alarm: Alarm | None = None

    def trip(self, sighting: Sighting, ledger: Ledger, disputed: RingResult | None = None) -> NoReturn:
        """Build and report the alarm, wait (bounded) until every rank has done so, raise.

        Capsule and trail are written after the alarm is safe, and only as long as that wait may last anyway.

        Raises:
            SdcAlarm: always.
        """
        setup = self._setup
        if _preflight_only.asked():
            self._say_only(sighting, ledger)
        with steady(ExitCode.ALARM):
            sealed = self._seal(sighting, disputed)
            self._alarm = _alarm.build(
                sighting,
                ledger.passes,
                setup.rank_map,
                setup.settings,
                setup.comm,
                setup.checkpoints,
                tuple(ledger.notes),
                None if sealed is None else sealed.ref,
                setup.schedule.kernels.value,
            )
            if setup.reporter is not None:
                setup.reporter.alarm(self._alarm)
            else:
                log_line("alarm", rank=setup.comm.rank, alarm=to_plain(self._alarm))
            reported = time.monotonic()
            files = [] if sealed is None else [(Path(sealed.ref.path), sealed.data)]
            write_all([*files, *self._trail(self._alarm, ledger.trail)], FAREWELL)
            left = FAREWELL - timedelta(seconds=time.monotonic() - reported)
            setup.comm.meet(f"alarm/{self._alarm.step}/{self._alarm.time}", max(left, timedelta()))
        raise SdcAlarm(self._alarm, message(self._alarm))

    def _say_only(self, sighting: Sighting, ledger: Ledger) -> NoReturn:
        """In a preflight: no spool, record, event, capsule, and no checkpoint is moved aside."""
        setup, notes = self._setup, tuple(ledger.notes)
        alarm = _alarm.build(sighting, ledger.passes, setup.rank_map, setup.settings, setup.comm, None, notes)
        setup.comm.meet("preflight/alarm", _preflight_only.FAREWELL)
        raise SdcAlarm(alarm, _preflight_only.message(alarm))

    def _seal(self, sighting: Sighting, disputed: RingResult | None) -> Sealed | None:
        setup = self._setup
        if disputed is None or not sighting.contests or setup.sharding is not None:
            return None  # shards are no weights that one GPU could compute with
        capture = disputed.capture
        if (capture.whole or capture).kept is not None:
            return None  # settings of one rank, which the model of `sdc replay` has not
        scene = Scene(
            sighting.step,
            sighting.check.value,
            sighting.findings,
            sighting.contests,
            setup.rank_map.place(setup.comm.rank),
            _alarm.versions(),
        )
        read = tuple(read_locally(list(setup.parameters.values()), setup.naming))
        rows = self._replayer.rows_of(disputed.capture)
        exhibit = Exhibit(
            disputed.capture,
            disputed.original,
            read,
            self._replayer.compiled,
            setup.schedule.deterministic,
        )
        weights = dict(setup.module.named_parameters())
        return seal(scene, exhibit, rows, weights, setup.settings, setup.device)

    def _trail(self, alarm: Alarm, trail: Trail) -> list[tuple[Path, bytes]]:
        """What `sdc bisect` compares with, from the first rank."""
        setup = self._setup
        if not setup.comm.is_first or alarm.check is Check.WEIGHTS or setup.sharding is not None:
            return []
        weights = dict(setup.module.named_parameters())
        return trail_file(setup.settings, alarm, setup.comm.world, weights, trail)

    def raise_again(self) -> None:
        """Raise the alarm that was raised before, if any."""
        if self._alarm is not None:
            raise SdcAlarm(self._alarm, message(self._alarm))
