"""What a run's layer audits have done so far, carried from checkpoint to checkpoint.

In: passed and skipped layer audits, as `_layers` books them. Out: the manifest's "layer_audits", and whose
turn it is. A pass says something of one block of one step; the suspect windows of whole audits ignore it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from .log_line import log_line


@dataclass(slots=True)
class LayerBook:
    """Sums over all starts that led to this state, `skipped_now` aside; equal on all ranks."""

    turn: int = 0  # layer audits so far, made or not: it picks the block
    blocks: int = 0  # that the model has; 0: layer audits are off
    passed: int = 0
    skipped: int = 0  # due, and not comparable
    skipped_now: int = 0  # of this start
    gpu_blocks: int = 0  # blocks that another GPU computed again and found equal
    nbytes: int = 0  # compared, over all ranks
    last_pass: int | None = None  # its step
    covered: set[str] = field(default_factory=set)  # blocks that have passed at least once
    _said: set[str] = field(default_factory=set)

    def audit_passed(self, step: int, block: str, nbytes: int, world: int) -> None:
        """All ranks computed a peer's block of `step` again and compared `nbytes` each."""
        self.passed += 1
        self.gpu_blocks += world
        self.nbytes += nbytes * world
        self.last_pass = step
        self.covered.add(block)

    def audit_skipped(self, step: int, reason: str) -> None:
        """One that was due and could not be made; each reason is said once."""
        self.skipped += 1
        self.skipped_now += 1
        if reason not in self._said:
            self._said.add(reason)
            log_line("warning", message=f"layer audit of step {step} skipped: {reason}", step=step)

    def of(self, step: int) -> dict[str, Any]:
        """What the reporter is told of an applied step, for `StepChecks`."""
        audited = self.last_pass == step if self.blocks else None
        return {"layer_audited": audited, "layer_audits_skipped": self.skipped_now}

    def plain(self) -> dict[str, Any]:
        """For a manifest."""
        counted = {name: getattr(self, name) for name in _KEPT}
        return {**counted, "blocks": self.blocks, "covered": sorted(self.covered)}

    def resume(self, manifest: Mapping[str, Any]) -> None:
        """Go on from a checkpoint's figures; from nothing where it has none that can be read."""
        before, none = manifest.get("layer_audits"), LayerBook()
        try:
            known = {} if before is None else {name: before[name] for name in _KEPT}
            covered = set() if before is None else set(map(str, before["covered"]))
        except (KeyError, TypeError):  # of a version that is not ours: not counted
            known, covered = {}, set()
        for name in _KEPT:  # all of them: a start may have tried a newer checkpoint before
            setattr(self, name, known.get(name, getattr(none, name)))
        self.covered = covered


_KEPT = ("turn", "passed", "skipped", "gpu_blocks", "nbytes", "last_pass")
