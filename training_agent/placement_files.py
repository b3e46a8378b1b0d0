"""How starting ranks know about each other before there is a process group: files in the shared folder.

`placement/<attempt>/<rank>.json` says where a rank stands; `placement/<attempt>/verdict.json`, by rank 0,
says whether all may go. Used by `training_agent.hold` only.
"""

from __future__ import annotations

import json
import secrets
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from .contract import ContractError, Place, from_plain, to_plain
from .shared_files import write_atomic

VERDICT_FILE = "verdict.json"


@dataclass(frozen=True, slots=True)
class Judgement:
    """Rank 0's word for this moment: `go`, or `hold` with reasons, or `refuse` when the hold timed out, or
    `stop` because it is no hardware."""

    word: str
    reasons: tuple[str, ...] = ()


class PlacementFiles:
    """One attempt's files, seen from one rank.

    Each start of a process draws a token. Rank 0 clears what an earlier start under the same attempt number
    left (a job whose SDC_ATTEMPT does not count), and its verdict lists the tokens that it judged: nobody can
    take an old word for a new one.
    """

    def __init__(self, shared_dir: Path, attempt: int, place: Place, world_size: int) -> None:
        self.folder = shared_dir / "placement" / str(attempt)
        self._place = place
        self._world_size = world_size
        self._token = secrets.token_hex(8)
        self._seen: dict[int, tuple[Place, str]] = {}
        self._said: Judgement | None = None
        if place.rank == 0:
            self._clear()
        self._write_own()

    def missing(self) -> tuple[int, ...]:
        """Ranks of this attempt that have not written their place yet."""
        own = self._path(self._place.rank)
        if not own.exists():  # rank 0 came later and cleared it
            self._write_own()
        for rank in range(self._world_size):
            if rank not in self._seen:
                found = self._read(rank)
                if found is not None:
                    self._seen[rank] = found
        return tuple(r for r in range(self._world_size) if r not in self._seen)

    def places(self) -> tuple[Place, ...]:
        """Places of all ranks, once `missing` is empty."""
        return tuple(self._seen[r][0] for r in range(self._world_size))

    def say(self, judgement: Judgement) -> None:
        """Write the verdict, on rank 0, when it differs from the last one."""
        if judgement == self._said:
            return
        tokens = [self._seen[r][1] for r in range(self._world_size)]
        plain = {"word": judgement.word, "reasons": list(judgement.reasons), "tokens": tokens}
        write_atomic(self.folder / VERDICT_FILE, json.dumps(plain).encode())
        self._said = judgement

    def heard(self) -> Judgement | None:
        """Return the verdict on this very start of this rank, None while there is none."""
        plain = _json(self.folder / VERDICT_FILE)
        rank = self._place.rank
        try:
            if plain is None or plain["tokens"][rank] != self._token:
                return None
            return Judgement(str(plain["word"]), tuple(map(str, plain["reasons"])))
        except (KeyError, IndexError, TypeError):
            return None

    def _path(self, rank: int) -> Path:
        return self.folder / f"{rank}.json"

    def _clear(self) -> None:
        for path in self.folder.glob("*.json") if self.folder.is_dir() else ():
            path.unlink(missing_ok=True)

    def _write_own(self) -> None:
        plain = {**to_plain(self._place), "token": self._token}
        write_atomic(self._path(self._place.rank), json.dumps(plain).encode())

    def _read(self, rank: int) -> tuple[Place, str] | None:
        plain = _json(self._path(rank))
        try:
            return None if plain is None else (from_plain(Place, plain), str(plain["token"]))
        except (ContractError, KeyError, TypeError):
            return None


def _json(path: Path) -> Any:
    try:
        return json.loads(path.read_bytes())
    except (OSError, ValueError):  # not there yet, or a network file system in trouble: look again
        return None
