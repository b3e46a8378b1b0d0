"""What the launches of `sdc bisect` gave so far, in a file beside the alarm.

In: the state file, and the record that a launch writes. Out: `Memory`. Next: `bisect` goes on from it.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

from ..bisect import Kind, Seen
from ..contract import Alarm, occurrence_key
from ..contract import delivery_key as key_of
from ..shared_files import write_atomic
from .failures import CannotAskError


@dataclass(slots=True)
class Memory:
    """What all launches gave so far."""

    seen: Seen = field(default_factory=Seen)
    updates: int = 0  # computed


def remembered(path: Path, alarm: Alarm) -> Memory:
    """What earlier launches gave.

    Raises:
        CannotAskError: the file is damaged, or of another alarm.
    """
    if not path.exists():
        return Memory()
    try:
        plain = json.loads(path.read_text())
        if plain["alarm"] != _key(alarm):
            raise ValueError("it belongs to another alarm")
        seen = Seen(*({int(s): str(d) for s, d in plain[k.value].items()} for k in Kind))
        return Memory(seen, int(plain["updates"]))
    except (ValueError, KeyError, TypeError, AttributeError) as e:
        raise CannotAskError(
            f"The state file {path} cannot be used: {e}.", "--state FILE, or move it away"
        ) from e


def remember(path: Path, alarm: Alarm, memory: Memory) -> None:
    """Write it for the next call.

    Raises:
        OSError: it cannot be kept there.
    """
    plain = {"alarm": _key(alarm), "updates": memory.updates}
    plain |= {kind.value: memory.seen.of(kind) for kind in Kind}
    write_atomic(path, json.dumps(plain, indent=1).encode())


def _key(alarm: Alarm) -> str:
    return occurrence_key(key_of(alarm), alarm.job.attempt)


def points(record: Path) -> Iterator[tuple[int, str]]:
    """What a launch has written down; a line that was cut off is none."""
    for line in record.read_text().splitlines() if record.exists() else ():
        with suppress(ValueError, TypeError):
            step, digest = json.loads(line)
            yield int(step), str(digest)
