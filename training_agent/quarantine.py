"""The job's own record of suspects: `quarantine.json`, written on an alarm, read by every starting rank.

Comes from an `Alarm`; goes to `training_agent.hold`, which keeps a restarted job off the nodes named here
until the pipeline's quarantine table releases them. Entries are only ever added.
"""

from __future__ import annotations

from contextlib import AbstractContextManager
from pathlib import Path

from .contract import (
    QUARANTINE_FILE,
    Alarm,
    Finding,
    FindingKind,
    Place,
    QuarantineEntry,
    QuarantineFile,
    decode,
    delivery_key,
    encode,
    occurrence_key,
)
from .shared_files import alone, write_atomic

_PATIENCE_S = 5.0  # a writer needs milliseconds; one that died holding the file keeps nobody longer


def entries_of(alarm: Alarm) -> tuple[QuarantineEntry, ...]:
    """Suspects of an alarm: the named rank's place, else the places involved, else the whole job.

    Nobody is held for software or configuration (S1) and for data that healthy peers reproduce (N0).
    """
    key = occurrence_key(delivery_key(alarm), alarm.job.attempt)
    entries: dict[tuple[str | None, str | None], QuarantineEntry] = {}
    for finding in alarm.findings:
        for instance_id, gpu_uuid in _suspects(finding):
            entries[(instance_id, gpu_uuid)] = QuarantineEntry(
                delivery_key=key,
                instance_id=instance_id,
                gpu_uuid=gpu_uuid,
                suspect_window=alarm.suspect_window,
                resume_from=alarm.resume_from,
                time=alarm.time,
            )
    return tuple(entries.values())


def read_record(shared_dir: Path) -> QuarantineFile:
    """Read the record; empty when there is none.

    Raises
    ------
    ContractError: it is damaged, so that who is suspect is unknown.
    OSError: it cannot be read.
    """
    path = shared_dir / QUARANTINE_FILE
    try:
        text = path.read_bytes()
    except FileNotFoundError:
        return QuarantineFile()
    return decode(QuarantineFile, text, max_bytes=None)


def add_to_record(shared_dir: Path, entries: tuple[QuarantineEntry, ...]) -> None:
    """Add `entries` to the record, durably; called by one rank of each group that is guarded by itself.

    A damaged record is left as it is: it makes every restart hold; overwriting it would free its suspects.

    Raises
    ------
    ContractError, OSError: as `read_record`, or the disk is full.
    """
    with changing(shared_dir):
        known = read_record(shared_dir).entries
        new = tuple(e for e in entries if e not in known)
        if new:
            record = QuarantineFile(entries=known + new)
            write_atomic(shared_dir / QUARANTINE_FILE, encode(record).encode())


def changing(shared_dir: Path) -> AbstractContextManager[None]:
    """Nobody else reads and rewrites the record inside the block."""
    return alone(shared_dir / f".{QUARANTINE_FILE}.lock", _PATIENCE_S)


def covers(entry: QuarantineEntry, place: Place) -> bool:
    """Tell whether `place` stands on the instance or GPU of `entry`, or `entry` holds the whole job."""
    if entry.instance_id is None and entry.gpu_uuid is None:
        return True
    same_instance = entry.instance_id is not None and entry.instance_id == place.instance_id
    same_gpu = entry.gpu_uuid is not None and entry.gpu_uuid == place.gpu_uuid
    return same_instance or same_gpu


def _suspects(finding: Finding) -> tuple[tuple[str | None, str | None], ...]:
    if finding.no_gpu:
        return ()
    if finding.rank is not None:
        place = finding.place
        return ((place.instance_id, place.gpu_uuid) if place else (None, None),)
    if finding.kind is FindingKind.REDUCED or not finding.involved:
        return ((None, None),)
    return tuple((p.instance_id, p.gpu_uuid) for p in finding.involved)
