"""Alarms on the disk before anything else, so that none is lost when the process is killed right after.

`<name>.json` holds the alarm; `<name>.sent` beside it says that the bus has taken it; the name is that of the
alarm in its attempt (`name_of`). Written by the reporter in `alarm`, read by the reporter of the next start,
which sends what has no mark.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from .contract import Alarm, ContractError, decode, delivery_key, encode, occurrence_key
from .log_line import utc_now
from .settings import AgentSettings
from .shared_files import write_atomic


def name_of(alarm: Alarm) -> str:
    """The alarm's name in the spool: a released job may alarm again with the same delivery key."""
    return occurrence_key(delivery_key(alarm), alarm.job.attempt)


@dataclass(frozen=True, slots=True)
class Spool:
    """A folder of alarms, shared by all ranks of a job: each writes the same bytes under the same name."""

    folder: Path

    def put(self, alarm: Alarm) -> str:
        """Store the alarm durably and return its name; the first rank's file stands.

        Raises
        ------
        OSError: the disk is full or not writable.
        """
        name = name_of(alarm)
        path = self.folder / f"{name}.json"
        if not path.exists():
            write_atomic(path, encode(alarm).encode())
        return name

    def mark_sent(self, name: str) -> None:
        """Note that the bus has taken the alarm.

        Raises
        ------
        OSError: as `put`; the next start then sends it again, under the same delivery key.
        """
        write_atomic(self.folder / f"{name}.sent", utc_now().encode())

    def alarms(self) -> tuple[Alarm, ...]:
        """All alarms, sent or not, oldest first; files that are not alarms are left alone.

        Raises
        ------
        OSError: the folder cannot be read.
        """
        return self._read(lambda path: True)

    def unsent(self) -> tuple[Alarm, ...]:
        """Alarms without a mark, oldest first; files that are not alarms are left alone.

        Raises
        ------
        OSError: the folder cannot be read.
        """
        return self._read(lambda path: not path.with_suffix(".sent").exists())

    def _read(self, wanted: Callable[[Path], bool]) -> tuple[Alarm, ...]:
        if not self.folder.is_dir():
            return ()
        found = []
        for path in filter(wanted, self.folder.glob("*.json")):
            try:
                found.append(decode(Alarm, path.read_bytes(), max_bytes=None))
            except ContractError:
                continue
        return tuple(sorted(found, key=lambda alarm: alarm.time))


def spool_of(settings: AgentSettings) -> Spool:
    """The job's spool: in the shared folder, else in this machine's temporary folder.

    The latter survives a restart in the same pod, not the loss of the pod.
    """
    if settings.shared_dir is not None:
        return Spool(settings.shared_dir / "spool")
    return Spool(Path(tempfile.gettempdir()) / f"sdc-spool-{settings.job.uid}")
