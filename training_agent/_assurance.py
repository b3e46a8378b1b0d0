"""How far a run was looked at: the figures behind its report, carried from checkpoint to checkpoint.

In: applied steps, passed audits and weight checks, as the ledger books them. Out: the manifest's "assurance":
sums over all starts that led to this checkpoint. Work that an alarm threw away is in none of them, so they
never say more than what was seen of this state. Next: `cli.report` computes the bounds that follow.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from torch import Tensor

KINDS = ("plain", "audited", "weights compared", "audited, weights compared")  # of steps, by what they cost


@dataclass(slots=True)
class Assurance:
    """Sums; those of GPUs are over all ranks, seconds are this rank's."""

    world: int = 1  # ranks of this start
    replicas: int = 1  # of the weights: as many as ranks, fewer where those hold shards
    weight_bytes: int = 0  # of one replica
    starts: int = 1
    since_step: int = 0  # updates that were applied before anything was counted
    from_step: int = 0  # of this start
    gpu_steps: int = 0  # of earlier starts: applied updates times ranks
    gpu_steps_audited: int = 0  # computed again on another GPU and found equal
    audits: int = 0  # passed
    audits_forced: int = 0  # of those that passed: with the kernels of every step
    audits_skipped: int = 0
    weight_checks: int = 0  # passed
    bytes_replayed: int = 0  # compared by audits
    bytes_of_weights: int = 0  # compared by weight checks
    last_audit: int | None = None
    longest_gap: int = 0  # steps from one passed audit to the next, the first one from `since_step`
    seconds: dict[str, list[float]] = field(default_factory=lambda: {kind: [0, 0.0] for kind in KINDS})
    forced: bool = False  # this start's kernels
    _began: float | None = None
    _first: bool = True  # of this start: its step holds the preflight

    @classmethod
    def begun(
        cls,
        step: int,
        world: int,
        parameters: Iterable[Tensor],
        replicas: int | None = None,
        *,
        forced: bool = False,
    ) -> Assurance:
        """At `step` updates, nothing counted yet; `replicas`: None, each rank holds one."""
        replica = sum(p.numel() * p.element_size() for p in parameters)
        return cls(world, replicas or world, replica, since_step=step, from_step=step, forced=forced)

    def begin(self) -> None:
        """A step's first forward begins."""
        self._began = time.perf_counter()

    def applied(self, *, audited: bool, compared: bool) -> None:
        """The step was applied; what it took counts for its kind."""
        began, self._began = self._began, None
        if began is not None and not self._first:
            kind = self.seconds[KINDS[int(audited) + 2 * int(compared)]]
            kind[0] += 1
            kind[1] += time.perf_counter() - began
        self._first = False

    def audited(self, step: int, nbytes: int) -> None:
        """All ranks replayed a peer's micro-batch of `step` and compared `nbytes` each."""
        last = self.since_step if self.last_audit is None else self.last_audit
        self.longest_gap = max(self.longest_gap, step - last)
        self.last_audit = step
        self.audits += 1
        self.audits_forced += self.forced
        self.gpu_steps_audited += self.world
        self.bytes_replayed += nbytes * self.world

    def compared(self) -> None:
        """All replicas held the same weights."""
        self.weight_checks += 1
        self.bytes_of_weights += self.weight_bytes * self.replicas

    def plain(self, step: int) -> dict[str, Any]:
        """For the manifest of a checkpoint at `step` updates."""
        counted = {name: getattr(self, name) for name in _SUMS}
        counted["gpu_steps"] += (step - self.from_step) * self.world
        timed = {kind: [int(n), round(s, 3)] for kind, (n, s) in self.seconds.items()}
        return {**counted, "starts": self.starts, "since_step": self.since_step,
                "last_audit": self.last_audit, "longest_gap": self.longest_gap, "seconds": timed}  # fmt: skip

    def resume(self, manifest: Mapping[str, Any]) -> None:
        """Go on from a checkpoint's figures; from its step alone where it has none that can be read.

        What was taken over before counts no more: a start may have tried a newer one, which was damaged.
        """
        own = Assurance(self.world, self.replicas, self.weight_bytes, forced=self.forced)
        for name in (*_SUMS, "starts", "last_audit", "longest_gap", "seconds"):
            setattr(self, name, getattr(own, name))
        self.since_step = self.from_step = int(manifest["step"])
        before = manifest.get("assurance")
        try:
            self._add(before if isinstance(before, dict) else {})
        except (KeyError, TypeError, ValueError, IndexError):  # of a version that is not ours: not counted
            return

    def _add(self, before: Mapping[str, Any]) -> None:
        if not before:
            return
        sums = {name: int(before[name]) for name in _SUMS if name not in _LATER or name in before}
        seconds = {k: [int(before["seconds"][k][0]), float(before["seconds"][k][1])] for k in KINDS}
        last, gap = before["last_audit"], int(before["longest_gap"])
        starts, since = int(before["starts"]), int(before["since_step"])
        for name, value in sums.items():
            setattr(self, name, value)
        self.seconds, self.longest_gap = seconds, gap
        self.last_audit = None if last is None else int(last)
        self.starts, self.since_step = starts + 1, since


_SUMS = (
    "gpu_steps", "gpu_steps_audited", "audits", "audits_forced", "audits_skipped", "weight_checks",
    "bytes_replayed", "bytes_of_weights",
)  # fmt: skip
_LATER = frozenset({"audits_forced"})  # than the first manifests: there it is none
