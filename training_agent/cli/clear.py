"""Takes entries out of a job's own record of suspects, where no pipeline can release them.

In: the shared folder, which entries, why. Out: `quarantine.json` without them, and one line for each in
`quarantine-cleared.jsonl` beside it: who is on record as having let whom go. The pipeline's quarantine table
is not touched: what it holds stays held.
"""

from __future__ import annotations

import getpass
import json
from pathlib import Path

from ..contract import (
    NODE_NAME_PREFIX,
    QUARANTINE_FILE,
    ContractError,
    QuarantineEntry,
    QuarantineFile,
    encode,
    to_plain,
)
from ..log_line import utc_now
from ..quarantine import changing, read_record
from ..shared_files import fsync_folder, write_atomic
from .failures import CannotAskError, NotFoundError

CLEARED_FILE = "quarantine-cleared.jsonl"


def entries(folder: Path) -> tuple[QuarantineEntry, ...]:
    """All entries of the record.

    Raises:
        CannotAskError: there is no such folder, or the record is damaged.
    """
    if not folder.is_dir():
        raise CannotAskError(f"{folder} is no folder.", "Give the job's SDC_SHARED_DIR with --shared-dir.")
    try:
        return read_record(folder).entries
    except (ContractError, OSError) as e:
        raise CannotAskError(
            f"{folder / QUARANTINE_FILE} cannot be read: {e}.",
            "Every start of the job holds until it can: repair it, or move it away after looking into it.",
        ) from e


def clear(folder: Path, chosen: tuple[QuarantineEntry, ...], reason: str) -> None:
    """Take `chosen` out; noted before it is done.

    Raises:
        CannotAskError: the folder cannot be written.
    """
    try:
        with changing(folder):
            _rewrite(folder, chosen, reason)
    except OSError as e:
        raise CannotAskError(f"{folder} cannot be written: {e}.", "Run it where the job can write.") from e


def _rewrite(folder: Path, chosen: tuple[QuarantineEntry, ...], reason: str) -> None:
    kept = tuple(e for e in entries(folder) if e not in chosen)
    with (folder / CLEARED_FILE).open("a") as f:
        for entry in chosen:
            note = {"at": utc_now(), "by": getpass.getuser(), "reason": reason, "entry": to_plain(entry)}
            f.write(json.dumps(note, sort_keys=True) + "\n")
    fsync_folder(folder)
    write_atomic(folder / QUARANTINE_FILE, encode(QuarantineFile(entries=kept)).encode())


def choose(
    found: tuple[QuarantineEntry, ...], subject: str | None, *, everything: bool
) -> tuple[QuarantineEntry, ...]:
    """Entries of a node, an instance or a GPU; or all.

    Raises:
        NotFoundError: the record has none of them.
    """
    if everything:
        return found
    wanted = (subject or "").removeprefix(NODE_NAME_PREFIX)
    chosen = tuple(e for e in found if wanted and wanted in (e.instance_id, e.gpu_uuid))
    if not chosen:
        raise NotFoundError(
            f"The record has no entry of {subject}.", "`sdc clear` without a name lists what it has."
        )
    return chosen
