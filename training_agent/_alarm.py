"""From what a check saw to the one `Alarm` that is equal on all ranks.

Comes in: a `Sighting`. Goes out: the alarm (time, resume point and sizes are the first rank's). Next: the
guard hands it to the reporter and raises, with the text of `_alarm_text`.
"""

from __future__ import annotations

import platform
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from datetime import timedelta
from importlib import metadata
from typing import Any

import torch
import torch.distributed as dist

from ._comm import Comm
from ._patience import FILES_S, within
from .capsule.choice import chosen
from .checkpoint_folder import CheckpointInfo, Checkpoints
from .checks.weights import Divergence
from .contract import (
    Alarm,
    CapsuleRef,
    Check,
    Contest,
    Finding,
    FindingKind,
    Pair,
    ResumePoint,
)
from .digest import DIGEST_VERSION
from .log_line import log_line, utc_now
from .placement import RankMap
from .settings import AgentSettings

HOLDERS = timedelta(seconds=10)  # for the ranks whose micro-batch is contested to say what they keep of it
FIRST_RANK = HOLDERS + timedelta(seconds=FILES_S + 5)  # it also looks through its checkpoints
MAX_TENSOR_NAMES = 16  # in the alarm; the count has them all


@dataclass(frozen=True, slots=True)
class Sighting:
    """What a check saw, equal on all ranks."""

    check: Check
    step: int
    findings: tuple[Finding, ...]
    nonfinite_ranks: tuple[int, ...] = ()
    reduced_nonfinite: bool = False
    pairs: tuple[Pair, ...] = ()
    contests: tuple[Contest, ...] = ()
    divergence: Divergence = field(default_factory=Divergence)
    tensors_compared: int = 0
    bytes_compared: int = 0
    loss_audited: bool = False
    last_pass: int | None = None  # of what was seen, where that is not compared as often as the weights


@dataclass(frozen=True, slots=True)
class Passes:
    """Steps at which the checks last passed: records, never proof that a state is clean."""

    audit: int | None = None
    weights: int | None = None
    optimizer_state: int | None = None


def suspect_window(sighting: Sighting, passes: Passes) -> tuple[int, int]:
    """First and last step at which the fault can have begun to do harm.

    Since the last passed audit for checks 1 and 2, since the last passed weight check for check 3 (of
    optimizer state and buffers: the last that compared them); that single step for the reduction. Without any
    pass it begins at step 1. It never ends before it begins.
    """
    if sighting.check is Check.REDUCTION:
        return sighting.step, sighting.step
    if sighting.reduced_nonfinite and not sighting.nonfinite_ranks and not sighting.pairs:
        return sighting.step, sighting.step
    last = passes.weights if sighting.check is Check.WEIGHTS else passes.audit
    last = last if sighting.last_pass is None else sighting.last_pass
    return min((last or 0) + 1, sighting.step), sighting.step


def weights_findings(divergence: Divergence, rank_map: RankMap) -> tuple[Finding, ...]:
    """One finding per out-voted replica, or one without a name."""
    shown = ", ".join(divergence.tensors[:3]) + (", ..." if len(divergence.tensors) > 3 else "")
    count = f"{len(divergence.tensors)} of {divergence.tensors_compared}"
    text = f"{count} tensors differ between replicas ({shown})"
    if divergence.ranks:
        return tuple(
            Finding(
                FindingKind.WEIGHTS,
                rank=rank,
                place=rank_map.place(rank),
                majority=True,
                evidence=f"{text}; the copy of rank {rank} differs from that of more than half of the ranks",
            )
            for rank in divergence.ranks
        )
    involved = tuple(rank_map.place(r) for r in divergence.involved[:16])
    return (
        Finding(
            FindingKind.WEIGHTS, involved=involved, evidence=f"{text}; no copy is held by more than half"
        ),
    )


def build(
    sighting: Sighting,
    passes: Passes,
    rank_map: RankMap,
    settings: AgentSettings,
    comm: Comm,
    checkpoints: Checkpoints | None,
    notes: tuple[str, ...] = (),
    capsule: CapsuleRef | None = None,
    kernels: str = "",
) -> Alarm:
    """Write the alarm on all ranks: time, resume point and sizes are those of the first one.

    No collective: a peer that dies in this moment would hold the others in one until the group's timeout, and
    NCCL's watchdog would then end them before the alarm stands anywhere.

    `capsule`: this rank's own, if it has one; the alarm lists everybody's.
    """
    window = suspect_window(sighting, passes)
    tensors = sighting.tensors_compared or sighting.divergence.tensors_compared
    nbytes = sighting.bytes_compared or sighting.divergence.bytes_compared
    point = _resume_point(checkpoints, window[0]) if comm.is_first else None
    key = f"{sighting.check.value}/{sighting.step}"
    holders = chosen(sighting.findings, sighting.contests) if sighting.contests else ()
    own = None if capsule is None else asdict(capsule)
    kept = [k for k in comm.told_to_first(f"{key}/capsule", own, holders, HOLDERS) if k is not None]
    mine: list[Any] = [utc_now(), point, tensors, nbytes, kept]
    heard = comm.told_by_first(key, mine, FIRST_RANK)
    if heard is None:  # perhaps the faulty node itself; the alarm matters more than equal times
        log_line("warning", message=f"rank {comm.ranks[0]} said nothing of the alarm within {FIRST_RANK}")
    time, point, tensors, nbytes, kept = heard or mine
    resume_from = ResumePoint(*point) if point else None
    names = sighting.divergence.tensors
    return Alarm(
        cluster=settings.cluster,
        job=settings.job,
        check=sighting.check,
        step=sighting.step,
        time=time,
        findings=sighting.findings,
        suspect_window=window,
        world_size=rank_map.size,
        nodes=len(rank_map.nodes),
        independence=rank_map.independence,
        nonfinite_ranks=sighting.nonfinite_ranks,
        reduced_nonfinite=sighting.reduced_nonfinite,
        pairs=sighting.pairs,
        contests=sighting.contests,
        divergent_tensors=names[:MAX_TENSOR_NAMES],
        divergent_count=len(names),
        tensors_compared=tensors,
        bytes_compared=nbytes,
        loss_audited=sighting.loss_audited,
        last_audit_pass=passes.audit,
        last_weight_check_pass=passes.weights,
        resume_from=resume_from,
        versions=versions(),
        notes=notes,
        capsules=tuple(CapsuleRef(**k) for k in kept),
        group=comm.name,
        kernels=kernels,
    )


def versions() -> dict[str, str]:
    """What must be equal on all ranks for replays to match."""
    found = {
        "torch": str(torch.__version__),
        "python": platform.python_version(),
        "digest": str(DIGEST_VERSION),
    }
    if torch.version.cuda:
        found["cuda"] = torch.version.cuda
    return found


def what_runs(image: str | None) -> dict[str, str]:
    """What else a registration says of a node: its container's image, libraries that audits do not need."""
    found = {} if image is None else {"image": image}
    for package in ("training-agent", "boto3"):
        with suppress(metadata.PackageNotFoundError):  # from a source folder, or without publishing
            found[package] = metadata.version(package)
    if torch.version.cuda and dist.is_nccl_available():
        found["nccl"] = ".".join(map(str, torch.cuda.nccl.version()))  # type: ignore[no-untyped-call]
    return found


def _resume_point(checkpoints: Checkpoints | None, first_step: int) -> tuple[int, str] | None:
    """Move checkpoints of the window aside, find the newest before it; a bad disk must not eat the alarm."""
    if checkpoints is None:
        return None
    store = checkpoints

    def look() -> CheckpointInfo | None:
        store.mark_doubtful(first_step)
        return store.newest(before=first_step)

    try:
        newest = within(FILES_S, look)
    except Exception as e:  # noqa: BLE001 - the other ranks wait for this answer
        log_line("warning", message=f"checkpoints could not be searched for the alarm: {e}")
        return None
    return None if newest is None else (newest.step, str(newest.path))
