"""What a run left behind: its folder -> `Run`. Reads manifests and the spool; no tensor, no torch.

In: the job's shared folder (SDC_SHARED_DIR), or any folder with checkpoints. Out: figures, alarms,
checkpoints. A run that a library saved has records `*.sdc.json`, others `step-<n>/manifest.json`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

from ...checkpoint import CheckpointStore
from ...checkpoint_folder import MANIFEST, CheckpointInfo
from ...contract import Alarm
from ...integrations._sealed import SUFFIX, SealedCheckpoints
from ...kernels import Kernels, kernels_in
from ...spool import Spool
from ..failures import CannotAskError, NotFoundError
from . import bounds
from .alarms import of_audits

DEPTH = 2  # folders below the run's, in which checkpoints are looked for


@dataclass(frozen=True, slots=True)
class Saved:
    """One checkpoint and the checks that had passed."""

    step: int
    name: str
    state: str  # "complete", "doubtful", "incomplete"
    why: str  # it is not to be resumed from; "" where nothing is known against it
    passed: tuple[str, ...]  # at its very step
    last_audit: int | None
    last_weight_check: int | None
    at: str | None  # when its record was written, UTC


@dataclass(frozen=True, slots=True)
class LayerFigures:
    """Layer audits of a run."""

    passed: int
    skipped: int
    covered: int  # blocks that have passed at least once
    blocks: int  # of the model, as it was last divided
    gpu_blocks: int  # blocks that another GPU computed again
    nbytes: int


@dataclass(frozen=True, slots=True)
class Figures:
    """How far a run was looked at, up to the checkpoint of `step`; the bounds that follow are 95 %."""

    step: int
    since_step: int
    starts: int
    world_size: int
    gpu_steps: int
    gpu_steps_audited: int
    audits: int
    audits_skipped: int
    weight_checks: int
    bytes_replayed: int
    bytes_of_weights: int
    longest_gap: int | None  # steps in which a persistent fault could have lived; None: no audit passed
    since_last_audit: int | None
    loss_audited: bool
    kernels: Kernels
    audits_forced: int  # of the audits: with the kernels of every step
    schedule: Mapping[str, Any]
    overhead: bounds.Overhead | None
    layers: LayerFigures | None  # None: none was due
    audit_alarms: int  # that a comparison of replays raised
    other_alarms: int
    alarms_at_most: float | None  # of audits, per audited step, at 95 %: no more than that, true or false


@dataclass(frozen=True, slots=True)
class Run:
    """One run."""

    folder: str
    job: str  # its name, "" where nothing says it
    job_uid: str
    alarms: tuple[Alarm, ...]  # oldest first
    checkpoints: tuple[Saved, ...]  # by step
    figures: Figures | None  # None: no manifest with figures (written by an older agent, or none at all)
    notes: tuple[str, ...] = field(default=())  # what was not checked, and why


def read(folder: Path) -> Run:
    """Read one run.

    Raises:
        NotFoundError: neither a checkpoint nor an alarm is there.
        CannotAskError: the folder cannot be read.
    """
    if not folder.is_dir():
        raise NotFoundError(f"{folder} is no folder.", "Give the job's SDC_SHARED_DIR, or its checkpoints.")
    try:
        infos = tuple(sorted(_checkpoints(folder), key=lambda c: (c.step, c.path.name)))
        alarms = Spool(folder / "spool").alarms()
    except OSError as e:
        raise CannotAskError(f"{folder} cannot be read: {e}.", "Run it where the job's folder is.") from e
    if not infos and not alarms:
        raise NotFoundError(
            f"{folder} holds neither checkpoints with a manifest nor a spool.",
            "Give the job's SDC_SHARED_DIR, or the folder of its checkpoints.",
        )
    manifest = _newest(infos)
    job = manifest.get("job") or {}
    newest = alarms[-1].job if alarms else None
    notes = [*manifest.get("notes", ()), *(n for a in alarms for n in a.notes)]
    return Run(
        str(folder),
        str(job.get("name") or (newest.name if newest else "")),
        str(job.get("uid") or (newest.uid if newest else "")),
        alarms,
        tuple(map(_saved, infos)),
        figures(manifest, alarms),
        tuple(dict.fromkeys(map(str, notes))),
    )


def figures(manifest: Mapping[str, Any], alarms: Sequence[Alarm] = ()) -> Figures | None:
    """From a guard's manifest and the run's alarms; None where it has no figures of ours."""
    counted, step = manifest.get("assurance"), manifest.get("step")
    if not isinstance(counted, dict) or not isinstance(step, int):
        return None
    plan = manifest.get("schedule") or {}
    last, audits = counted.get("last_audit"), int(counted["audits"])
    raised = of_audits(alarms)
    return Figures(
        step=step,
        since_step=int(counted["since_step"]),
        starts=int(counted["starts"]),
        world_size=int(manifest.get("world_size", 0)),
        gpu_steps=int(counted["gpu_steps"]),
        gpu_steps_audited=int(counted["gpu_steps_audited"]),
        audits=audits,
        audits_skipped=int(counted["audits_skipped"]),
        weight_checks=int(counted["weight_checks"]),
        bytes_replayed=int(counted["bytes_replayed"]),
        bytes_of_weights=int(counted["bytes_of_weights"]),
        longest_gap=int(counted["longest_gap"]) if audits else None,
        since_last_audit=step - int(last) if last is not None else None,
        loss_audited=bool(manifest.get("loss_audited")),
        kernels=kernels_in(plan) or Kernels.SWITCHED,
        audits_forced=int(counted.get("audits_forced", 0)),
        schedule=plan,
        layers=_layers(manifest.get("layer_audits")),
        overhead=bounds.overhead(counted.get("seconds") or {}),
        audit_alarms=raised,
        other_alarms=len(alarms) - raised,
        alarms_at_most=bounds.at_most(raised, audits + raised),
    )


def _layers(counted: Any) -> LayerFigures | None:
    if not isinstance(counted, dict) or not counted["passed"] + counted["skipped"]:
        return None
    numbers = (int(counted[name]) for name in ("blocks", "gpu_blocks", "nbytes"))
    return LayerFigures(int(counted["passed"]), int(counted["skipped"]), len(counted["covered"]), *numbers)


def _newest(infos: Sequence[CheckpointInfo]) -> Mapping[str, Any]:
    """The manifest that has seen most: of the last checkpoint that is not doubtful, else of the last one."""
    usable = [c.manifest for c in infos if c.manifest is not None and not c.doubtful]
    return (usable or [c.manifest for c in infos if c.manifest is not None] or [{}])[-1]


def _checkpoints(folder: Path) -> Iterator[CheckpointInfo]:
    for place in _folders(folder, DEPTH):
        yield from CheckpointStore(place, 1).list()
        yield from SealedCheckpoints(place).list()


def _folders(folder: Path, depth: int) -> Iterator[Path]:
    """The folder and those below it, without checkpoints themselves."""
    yield folder
    if depth == 0:
        return
    for inner in sorted(folder.iterdir()):
        if inner.is_dir() and not inner.is_symlink() and not inner.name.startswith("step-"):
            yield from _folders(inner, depth - 1)


def _saved(info: CheckpointInfo) -> Saved:
    manifest = info.manifest or {}
    state = "incomplete" if not info.complete else "doubtful" if info.doubtful else "complete"
    return Saved(
        info.step,
        info.path.name,
        state,
        "" if state == "complete" else str(info.reason or "inside a suspect window"),
        tuple(map(str, manifest.get("passed_at_this_step", ()))),
        manifest.get("last_audit_pass"),
        manifest.get("last_weight_check_pass"),
        _written(info.path),
    )


def _written(path: Path) -> str | None:
    for record in (path / MANIFEST, path.with_name(path.name + SUFFIX)):
        if record.is_file():
            moment = datetime.fromtimestamp(record.stat().st_mtime, timezone.utc)
            return moment.strftime("%Y-%m-%dT%H:%M:%SZ")
    return None
