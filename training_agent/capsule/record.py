"""On an alarm: the capsule of this rank's micro-batch, built in memory, written where other pods can read it.

In: the sighting, and what this rank computed. Out: a `CapsuleRef` for the alarm, then the file. What does not
fit or cannot be written is said on the log: nothing here delays or endangers the alarm. Used by `_latch`.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path

import torch
from torch import Tensor

from .. import _trail
from .._capture import Capture
from .._evidence import Evidence
from .._patience import within
from .._trail import Trail
from ..contract import Alarm, CapsuleRef, Contest, Finding, Place, trail_name
from ..determinism import deterministic, environment
from ..digest import digest
from ..errors import CapsuleError
from ..log_line import log_line, utc_now
from ..settings import AgentSettings
from ..shared_files import write_atomic
from .choice import chosen, contest_of
from .content import Facts, dump, weight_digests

FOLDER = "capsules"  # in the job's shared folder, beside the spool
SUFFIX = ".sdc"


@dataclass(frozen=True, slots=True)
class Exhibit:
    """What this rank holds of a step that was replayed."""

    capture: Capture
    original: Evidence
    read: tuple[bool, ...]  # see `Facts.read`
    compiled: bool
    deterministic: bool = True  # kernels of the job's replays


@dataclass(frozen=True, slots=True)
class Scene:
    """What the alarm says, and where this rank stands."""

    step: int
    check: str
    findings: Sequence[Finding]
    contests: Sequence[Contest]
    place: Place
    versions: Mapping[str, str]


@dataclass(frozen=True, slots=True)
class Sealed:
    """A capsule that only has to be written."""

    ref: CapsuleRef
    data: bytes


def write_all(files: Sequence[tuple[Path, bytes]], patience: timedelta) -> None:
    """Write each beside and rename it, for at most `patience`; one cut short leaves no file of its name."""
    if not files:
        return

    def write() -> None:
        for path, data in files:
            try:
                write_atomic(path, data)
            except OSError as e:
                log_line("warning", message=f"{path} could not be written: {e}")

    try:
        within(patience.total_seconds(), write)
    except TimeoutError:
        log_line("warning", message=f"{files[0][0]} was not written within {patience.total_seconds():g} s.")


def trail_file(
    settings: AgentSettings,
    alarm: Alarm,
    world: int,
    weights: Mapping[str, Tensor],
    trail: Trail,
) -> list[tuple[Path, bytes]]:
    """The trail up to the weights as they are now, before the update of its step, for `write_all`."""
    if settings.shared_dir is None or not settings.capsule_bytes:
        return []
    try:
        now = alarm.step - 1, _trail.short(_trail.raw(digest([p.detach() for p in weights.values()])))
    except RuntimeError as e:  # the accelerator's own trouble must not cost the alarm
        log_line("warning", message=f"There is no trail of this alarm: {e}")
        return []
    text = _trail.text(alarm.step, world, list(weights), now, trail)
    return [(settings.shared_dir / FOLDER / trail_name(alarm), text.encode())]


def seal(
    scene: Scene,
    exhibit: Exhibit | None,
    rows: Sequence[str],
    weights: Mapping[str, Tensor],
    settings: AgentSettings,
    device: torch.device,
) -> Sealed | None:
    """Build this rank's capsule; None when the alarm is not about its micro-batch, or it cannot be kept.

    Args:
        rows: what the evidence begins with, in order: parameters, of a block its inputs as well.
        weights: all parameters by name, as they were before the update.
    """
    if exhibit is None or settings.shared_dir is None or not settings.capsule_bytes:
        return None
    if scene.place.rank not in chosen(scene.findings, scene.contests):
        return None
    try:
        data = _bytes(scene, exhibit, rows, weights, settings, device)
    except Exception as e:  # noqa: BLE001 - the alarm matters more, whatever the batch is made of
        why = str(e) if isinstance(e, CapsuleError) else f"{type(e).__name__}: {e}"
        log_line("warning", rank=scene.place.rank, message=f"There is no repro capsule of this step: {why}.")
        return None
    sha256 = hashlib.sha256(data).hexdigest()
    name = f"step-{scene.step}-rank-{scene.place.rank}-attempt-{settings.job.attempt}-{sha256[:8]}{SUFFIX}"
    path = settings.shared_dir / FOLDER / name
    return Sealed(CapsuleRef(scene.place.rank, str(path), sha256, len(data)), data)


def _bytes(
    scene: Scene,
    exhibit: Exhibit,
    rows: Sequence[str],
    weights: Mapping[str, Tensor],
    settings: AgentSettings,
    device: torch.device,
) -> bytes:
    rank, limit = scene.place.rank, settings.capsule_bytes
    with deterministic(exhibit.deterministic):
        switches = {name: str(fact) for name, fact in environment(device).items()}
    contest = contest_of(rank, scene.contests)
    facts = Facts(
        cluster=settings.cluster,
        job=settings.job,
        step=scene.step,
        check=scene.check,
        time=utc_now(),
        micro_batch_of=rank,
        written_by=scene.place,
        named=tuple(f.place for f in scene.findings if f.place is not None),
        expected=None if contest is None else contest.majority,
        votes=() if contest is None else contest.votes,
        compared=exhibit.original.depth.value,
        compiled=exhibit.compiled,
        parameters=tuple(rows),
        read=exhibit.read,
        tensors=exhibit.original.tensors,
        nbytes=exhibit.original.nbytes,
        versions=dict(scene.versions),
        environment=switches,
        weights=weight_digests(dict(weights)),
        device=device.type,
        deterministic=exhibit.deterministic,
        statistics=exhibit.original.statistics,
    )
    state = {name: p.detach() for name, p in weights.items()}
    size = sum(p.numel() * p.element_size() for p in state.values())
    data = b""
    if size <= limit:
        data = dump(facts, exhibit.capture, exhibit.original, state)
    if not data or len(data) > limit:  # without the weights: a checkpoint is needed then
        data = dump(facts, exhibit.capture, exhibit.original, None)
    if len(data) > limit:
        raise CapsuleError(f"it would have {len(data)} bytes, SDC_CAPSULE_MB allows {limit}")
    return data
