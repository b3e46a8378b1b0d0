"""`sdc bisect ALARM -- torchrun ... train.py`: the first poisoned update of the suspect window, by replay.

In: a spooled alarm, its trail, the job's checkpoints, the job's own launch on trusted GPUs. Out: where the
weights went wrong and the last checkpoint before, or what cannot be told. The state file is written after
every launch: an interrupted search goes on where it was. The search itself is `training_agent.bisect`.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from .._bisecting import Plan
from .._trail import short_of
from ..bisect import Case, Result, Start, Task, search
from ..checkpoint import CheckpointStore
from ..contract import Alarm, Check, ContractError, Env, ExitCode, decode, trail_name
from .bisect_memory import Memory, points, remember, remembered
from .failures import CannotAskError, CliError, Exit, NotFoundError
from .launching import launch
from .screen import Progress, Screen


@dataclass(frozen=True, slots=True)
class Search:
    """The options of the command."""

    alarm: Path
    launch: tuple[str, ...]
    checkpoints: Path | None = None
    trail: Path | None = None
    state: Path | None = None
    max_updates: int = 10_000

    @property
    def state_file(self) -> Path:
        """Where the search is remembered."""
        return self.state or self.alarm.with_suffix(".bisect.json")


class NoLaunchError(CliError):
    """Nothing was given after `--`."""

    code = Exit.USAGE


def bisect(screen: Screen, wanted: Search, environ: Mapping[str, str]) -> Exit:
    """Search until it is decided or the bound is reached; 0 decided, 4 not.

    Raises:
        NoLaunchError: there is no launch command.
        NotFoundError: there is no such alarm or trail.
        CannotAskError: a launch failed, or a file is damaged.
    """
    if not wanted.launch:
        raise NoLaunchError(
            "There is nothing to launch.", "sdc bisect ALARM -- torchrun --nproc-per-node 8 train.py"
        )
    alarm = _alarm(wanted.alarm)
    if alarm.check in (Check.WEIGHTS, Check.REDUCTION) or alarm.reduced_nonfinite:
        return _without_replay(screen, alarm)
    trail = _trail(wanted, alarm)
    case = _case(wanted, alarm, trail)
    memory = remembered(wanted.state_file, alarm)
    try:
        move = _searched(screen, wanted, alarm, trail, case, memory, environ)
    except OSError as e:
        raise CannotAskError(
            f"What the search remembers cannot be kept at {wanted.state_file}: {e}.", "--state FILE"
        ) from e
    return _tell(screen, alarm, move, memory.updates)


def _searched(
    screen: Screen,
    wanted: Search,
    alarm: Alarm,
    trail: Mapping[str, Any],
    case: Case,
    memory: Memory,
    environ: Mapping[str, str],
) -> Result:
    """Launch after launch, until it is decided or the bound is reached."""
    with screen.progress("searching") as progress:
        while isinstance(move := search(case, memory.seen), Task):
            task = move.within(wanted.max_updates - memory.updates)
            if task is None:
                text = f"{memory.updates} updates were computed, up to {move.updates} more are needed"
                return Result(None, None, False, f"{text}, and --max-updates is {wanted.max_updates}")
            try:
                _compute(wanted, task, memory, trail, progress, environ)
            finally:  # also what a launch computed that failed or was interrupted
                remember(wanted.state_file, alarm, memory)
    return move


def _alarm(path: Path) -> Alarm:
    try:
        return decode(Alarm, path.read_bytes(), max_bytes=None)
    except OSError as e:
        raise NotFoundError(f"{path} cannot be read: {e}.", "Alarms lie in $SDC_SHARED_DIR/spool.") from None
    except ContractError as e:
        raise CannotAskError(f"{path} is no alarm: {e}.", "Alarms lie in $SDC_SHARED_DIR/spool.") from None


def _trail(wanted: Search, alarm: Alarm) -> dict[str, Any]:
    path = wanted.trail or wanted.alarm.parent.parent / "capsules" / trail_name(alarm)
    try:
        trail = json.loads(path.read_text())
        int(trail["world"]), [(int(s), str(d)) for s, d in trail["points"]], [str(n) for n in trail["names"]]
    except OSError as e:
        raise NotFoundError(f"There is no trail {path}: {e}.", "Give it with --trail.") from None
    except (ValueError, KeyError, TypeError) as e:
        raise CannotAskError(
            f"The trail {path} is damaged: {e}.", "Without it nothing can be compared."
        ) from e
    assert isinstance(trail, dict)
    return trail


def _case(wanted: Search, alarm: Alarm, trail: Mapping[str, Any]) -> Case:
    """The recorded weights: the trail's from the start on, and those that checkpoints were saved with.

    Points on the way to the window are no suspects; one that is equal shows that replays give the job's bits.
    """
    first, last = alarm.suspect_window
    found: dict[int, Start] = {}
    saved = () if (folder := _folder(wanted, alarm)) is None else CheckpointStore(folder, 1).list()
    for info in sorted(saved, key=lambda c: (c.step, _number(c.path))):
        inside = first <= info.step < alarm.step
        if not info.complete or info.doubtful != inside or (info.doubtful and not _marked(info.path)):
            continue  # replaced, or of another alarm
        digest = short_of((info.manifest or {}).get("digests", {}), trail["names"])
        found[info.step] = Start(info.step, str(info.path), digest, info.doubtful)  # the last mark counts
    starts = [s for step, s in sorted(found.items()) if step < alarm.step]
    if first == 1 and not any(s.step == 0 for s in starts):
        starts.insert(0, Start(0, "", None))
    known = {s.step: s.digest for s in starts if s.doubtful and s.digest is not None}
    recorded = {int(step): digest for step, digest in trail["points"] if step < last}
    known |= {step: digest for step, digest in recorded.items() if step >= first}
    if known:  # without them there is nothing to search, however well replays agree before it
        begin = max((s.step for s in starts if not s.doubtful), default=first)
        known |= {step: digest for step, digest in recorded.items() if begin < step < first}
    return Case(tuple(sorted(known.items())), tuple(starts))


def _folder(wanted: Search, alarm: Alarm) -> Path | None:
    """Where the job's checkpoints are; None: it had none, and the window reaches back to its start."""
    folder = wanted.checkpoints
    if folder is None and alarm.resume_from is not None:
        folder = Path(alarm.resume_from.path).parent
    if folder is None and alarm.suspect_window[0] == 1:
        return None
    if folder is None:
        raise NotFoundError("The alarm knows no checkpoint from before its window.", "--checkpoints FOLDER")
    if not folder.is_dir():
        raise NotFoundError(f"There is no checkpoint folder {folder}.", "--checkpoints FOLDER")
    return folder


def _marked(path: Path) -> bool:
    return ".doubtful-" in path.name


def _number(path: Path) -> int:
    """Of a mark: `step-24.doubtful-10` came after `-2`."""
    last = path.name.rpartition("-")[2]
    return int(last) if last.isdecimal() else 0


def _compute(
    wanted: Search,
    task: Task,
    memory: Memory,
    trail: Mapping[str, Any],
    progress: Progress,
    environ: Mapping[str, str],
) -> None:
    """One launch; what it gave is in `memory` whatever becomes of it."""
    scratch = _fresh(wanted.state_file.with_suffix(".d"))
    record = scratch / "record.jsonl"
    plan = Plan(
        task.start.path,
        task.start.step,
        int(trail["world"]),
        task.points,
        str(record),
        tuple(map(int, trail.get("audits", ()))),
        tuple(map(int, trail.get("layers", ()))),
    )
    plan.save(scratch / "plan.json")
    progress.say(f"{task.kind.value}: from step {task.start.step} to {task.points[-1][0]}")
    changed = {
        Env.BISECT.value: str(scratch / "plan.json"),
        Env.SHARED_DIR.value: str(scratch / "shared"),  # nothing of the job's own folder is touched
        Env.CAPSULE_MB.value: "0",
    }
    (scratch / "shared").mkdir()
    told = {e.value for e in (Env.EVENT_BUS, Env.QUARANTINE_TABLE, Env.TERMINATION_LOG, Env.EXIT_CODES)}
    environment = {**{k: v for k, v in environ.items() if k not in told}, **changed}

    def heard(line: Mapping[str, Any]) -> None:
        if line["sdc"] == "bisect":
            progress.say(f"step {line['step']}: {'equal' if line['equal'] else 'different'}")

    try:
        ended = launch(wanted.launch, environment, heard)
    finally:
        found = dict(points(record))
        memory.seen.of(task.kind).update(found)
        memory.updates += max(found, default=task.start.step) - task.start.step
    if ended.code:
        alarmed = ended.code == ExitCode.ALARM
        meaning = "a trusted GPU alarmed" if alarmed else f"it ended with {ended.code}"
        raise CannotAskError(
            f"The launch failed: {meaning}. What it said:", "Mend it; nothing is lost.", ended.said
        )
    if not found:
        raise CannotAskError(
            f"The launch ended before step {task.points[0][0]} was computed.",
            "The script must train up to that step; see its output.",
        )


def _fresh(folder: Path) -> Path:
    numbers = (path.name.removeprefix("launch-") for path in folder.glob("launch-*"))
    made = folder / f"launch-{max((int(n) for n in numbers if n.isdecimal()), default=0) + 1}"
    made.mkdir(parents=True)
    return made


def _without_replay(screen: Screen, alarm: Alarm) -> Exit:
    if alarm.check is not Check.WEIGHTS:
        text = f"the reduction of step {alarm.step} failed and was not applied: no update is poisoned by it"
        return _tell(screen, alarm, Result(None, None, True, text), 0)
    passed = alarm.last_weight_check_pass
    text = f"replicas differ since an update after step {passed or 0}; the trail ends where they were equal"
    return _tell(screen, alarm, Result(None, None, False, text), 0)


def _tell(screen: Screen, alarm: Alarm, result: Result, spent: int) -> Exit:
    screen.document(
        {
            "decided": result.decided,
            "first_poisoned": result.poisoned,
            "back_to": None if result.back_to is None else asdict(result.back_to),
            "why": result.why,
            "updates_computed": spent,
            "suspect_window": alarm.suspect_window,
        }
    )
    screen.line(
        f"Alarm at step {alarm.step}, suspect window {alarm.suspect_window[0]} to {alarm.suspect_window[1]}."
    )
    screen.line(f"{result.why[:1].upper()}{result.why[1:]}.", style="" if result.decided else "bold red")
    if result.back_to is not None:
        where = result.back_to.path or "the start"
        screen.line(f"Last checkpoint before it: step {result.back_to.step}, {where}.")
    screen.line(f"{spent} updates were computed again.")
    return Exit.DONE if result.decided else Exit.CANNOT_ASK
