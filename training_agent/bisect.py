"""Which update was the first poisoned one? The search over what was recorded and what trusted GPUs get. Pure.

In: digests of the weights that the job recorded (`Case`), and those that replays gave so far (`Seen`). Out:
the next `Task` for a launch, or a `Result`. Used by `cli.bisect`, which launches and remembers.

A replay that differs from the record proves something only where one was equal before: otherwise these GPUs,
or this script, may never give the job's bits. And only if it gives the same bits twice.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum


@dataclass(frozen=True, slots=True)
class Start:
    """A checkpoint; step 0 with an empty path is a start from scratch."""

    step: int
    path: str
    digest: str | None  # of its weights as they were saved; None: its manifest does not tell
    doubtful: bool = False


@dataclass(frozen=True, slots=True)
class Case:
    """What the job left behind."""

    points: tuple[
        tuple[int, str], ...
    ]  # (updates applied, digest of the weights), ascending, from the start on
    starts: tuple[Start, ...]  # ascending; the sound ones from before the window, the doubtful ones inside


@dataclass(slots=True)
class Seen:
    """What replays gave: digest by step."""

    first: dict[int, str] = field(default_factory=dict)
    again: dict[int, str] = field(default_factory=dict)
    calibration: dict[int, str] = field(default_factory=dict)

    def of(self, kind: Kind) -> dict[int, str]:
        """Where results of a task go."""
        return {Kind.FIRST: self.first, Kind.AGAIN: self.again, Kind.CALIBRATE: self.calibration}[kind]


class Kind(str, Enum):
    """Why something is computed."""

    FIRST = "first"  # up to the first difference
    AGAIN = "again"  # the difference once more
    CALIBRATE = "calibrate"  # from an older checkpoint to the one before the window


@dataclass(frozen=True, slots=True)
class Task:
    """Compute from `start` and compare at `points`, up to the first that differs."""

    kind: Kind
    start: Start
    points: tuple[tuple[int, str], ...]

    @property
    def updates(self) -> int:
        """How many it takes at most."""
        return self.points[-1][0] - self.start.step

    def within(self, updates: int) -> Task | None:
        """The part that at most `updates` reach; None when that is no point."""
        points = tuple(p for p in self.points if p[0] - self.start.step <= updates)
        return Task(self.kind, self.start, points) if points else None


@dataclass(frozen=True, slots=True)
class Result:
    """What can be said."""

    poisoned: tuple[int, int] | None  # the first poisoned update is one of these, first to last
    back_to: Start | None  # newest checkpoint before it, its weights equal to the replay's
    decided: bool
    why: str  # one sentence for people


def search(case: Case, seen: Seen) -> Task | Result:
    """What to compute next, or the end."""
    sound = [s for s in case.starts if not s.doubtful]
    if not sound:
        return Result(None, None, False, "there is no checkpoint from before the suspect window")
    begin = sound[-1]
    if not case.points:
        return Result(None, begin, False, "the job recorded no weights in the window")
    equal, proven = begin.step, False
    for step, recorded in case.points:
        if step not in seen.first:
            rest = tuple(p for p in case.points if p[0] >= step)
            return Task(Kind.FIRST, _latest(case, seen, equal), rest)
        if seen.first[step] != recorded:
            return _difference(case, seen, equal, (step, recorded), proven)
        equal, proven = step, True
    text = f"all {len(case.points)} recorded weights up to step {equal} are what trusted GPUs compute"
    return Result(None, _latest(case, seen, equal), True, f"{text}: no poisoned update was applied")


def _difference(case: Case, seen: Seen, equal: int, point: tuple[int, str], proven: bool) -> Task | Result:
    begin = [s for s in case.starts if not s.doubtful][-1]
    older = [s for s in case.starts if not s.doubtful and s.step < begin.step]
    if not proven and begin.digest is not None and older:
        if begin.step not in seen.calibration:
            return Task(Kind.CALIBRATE, older[-1], ((begin.step, begin.digest),))
        proven = seen.calibration[begin.step] == begin.digest
        if not proven:
            text = f"from step {older[-1].step} on these GPUs do not even give the checkpoint of {begin.step}"
            return Result(None, begin, False, f"{text}: a difference proves nothing")
    if not proven:
        text = "no replay has given the job's bits yet, and there is no older checkpoint to try it on"
        return Result(None, begin, False, f"{text}: the difference at step {point[0]} proves nothing")
    start = _latest(case, seen, equal)
    if point[0] not in seen.again:
        return Task(Kind.AGAIN, start, (point,))
    if seen.again[point[0]] != seen.first[point[0]]:
        return Result(None, start, False, f"two replays up to step {point[0]} differ from each other")
    first, last = equal + 1, point[0]
    text = f"the weights after step {equal} are right and those after {last} are not"
    exact = f"update {first} is" if first == last else f"one of the updates {first} to {last} is"
    return Result((first, last), start, True, f"{text}: {exact} the first poisoned one")


def _latest(case: Case, seen: Seen, step: int) -> Start:
    """Newest checkpoint up to `step` whose weights are known to be right."""
    right = [s for s in case.starts if s.step <= step and (not s.doubtful or _verified(s, seen.first))]
    return right[-1]


def _verified(start: Start, first: Mapping[int, str]) -> bool:
    return start.digest is not None and first.get(start.step) == start.digest
