"""What a run's checks have done so far: last passes, counts, sizes; and a checkpoint's digests.

Comes in: results of the checks. Goes out: `Passes` for suspect windows, and the manifest of a checkpoint
(JSON).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from ._alarm import Passes, Sighting
from ._assurance import Assurance
from ._examine import AuditPass
from ._layer_book import LayerBook
from ._manifest import LoadedManifest, state_rows
from ._sightings import OVERFLOW_LIMIT
from ._trail import ROW, Trail
from .digest import DIGEST_VERSION
from .kernels import change
from .log_line import log_line
from .report import StepChecks

if TYPE_CHECKING:
    from torch import Tensor

    from ._startup import Setup
    from ._step_record import StepRecord

MANIFEST_VERSION = 1


@dataclass(slots=True)
class Ledger:
    """Counts of this run; equal on all ranks."""

    step: int = 0  # updates applied so far, over all starts
    passes: Passes = field(default_factory=Passes)
    assurance: Assurance = field(default_factory=Assurance)  # over all starts, unlike the counts below
    layers: LayerBook = field(default_factory=LayerBook)
    audits_passed: int = 0
    audits_skipped: int = 0  # due, but not comparable; never counted as passed
    weight_checks_passed: int = 0
    tensors_compared: int = 0  # by the last passed audit, on this rank; equal to what was expected
    bytes_compared: int = 0
    state_tensors_compared: int = 0  # of the optimizers, by the last comparison that had any
    buffers_compared: int = 0  # by the last comparison that had any
    loss_audited: bool = False
    overflow_steps: int = 0  # skipped by a GradScaler: normal
    steps_skipped: int = 0  # dropped by the policy
    steps_retried: int = 0  # right at the second attempt
    warnings: int = 0  # findings that the policy let pass
    trail: Trail = field(default_factory=Trail)
    about: dict[str, Any] = field(default_factory=dict)  # job and schedule, for whoever reads a manifest
    notes: list[str] = field(default_factory=list)  # what is not checked, and why
    _streaks: dict[int, int] = field(default_factory=dict)  # overflowing rank -> steps in a row
    _said: set[str] = field(default_factory=set)
    _state_digests: dict[str, str] = field(default_factory=dict)  # of the last passed weight check

    @classmethod
    def begun(cls, step: int, setup: Setup) -> Ledger:
        """Of a start at `step` updates."""
        job, plan = setup.settings.job, setup.schedule
        about = {"job": {"name": job.name, "uid": job.uid}, "schedule": plan.plain()}
        replicas = None if setup.sharding is None else len(setup.sharding.replicas)
        world, own = setup.comm.world, setup.parameters.values()
        assurance = Assurance.begun(step, world, own, replicas, forced=plan.forced)
        return cls(step, assurance=assurance, about=about)

    def resume(self, loaded: LoadedManifest, manifest: Mapping[str, Any]) -> None:
        """Go on from a checkpoint."""
        self.step, self.passes = loaded.step, loaded.passes
        self.assurance.resume(manifest)
        self.layers.resume(manifest)
        sentence = change(loaded.step, manifest.get("schedule"), self.about.get("schedule"))
        if sentence is not None:
            self.note(sentence)

    @property
    def audits_due(self) -> int:
        """Audits so far, passed or not."""
        return self.audits_passed + self.audits_skipped

    def note(self, sentence: str) -> None:
        """Keep a limit of this run for alarm and manifest; said once on the log."""
        if sentence not in self.notes:
            self.notes.append(sentence)
            log_line("warning", message=sentence)

    def computed(self, record: StepRecord, compute_loss: object) -> None:
        """Note what a step shows of the loop; `compute_loss`: what `attach` got."""
        sentence = None if compute_loss is None else record.past_loss()
        if sentence is not None:
            self.note(sentence)

    def overflowed(self, ranks: frozenset[int], world: int) -> int | None:
        """Count a step that a GradScaler skipped; return a rank that alone does so again and again.

        Steps in which half of the ranks or more overflow only say that the scale is too large.
        """
        self.overflow_steps += 1
        alone = ranks if 2 * len(ranks) < world else frozenset()
        self._streaks = {rank: self._streaks.get(rank, 0) + 1 for rank in alone}
        return next((r for r, n in sorted(self._streaks.items()) if n >= OVERFLOW_LIMIT), None)

    def overflow_free(self) -> None:
        """A step was scaled well: streaks end."""
        self._streaks = {}

    def step_skipped(self, sighting: Sighting) -> None:
        """Count a step that the policy dropped on all ranks."""
        self.steps_skipped += 1
        self._say("skipped", sighting)

    def warned(self, sighting: Sighting) -> None:
        """Count a finding that the policy let pass."""
        self.warnings += 1
        self._say("applied all the same", sighting)

    def retried(self, step: int) -> None:
        """Count a step that was right at its second attempt."""
        self.steps_retried += 1
        log_line("warning", message=f"step {step} failed a check and passed when computed again", step=step)

    def _say(self, what: str, sighting: Sighting) -> None:
        text = "; ".join(f.evidence for f in sighting.findings)
        message = f"step {sighting.step} failed check {sighting.check.value} and was {what}: {text}"
        log_line("warning", message=message, step=sighting.step)

    def audit_passed(self, step: int, compared: AuditPass) -> None:
        """Record a passed audit with what it compared."""
        self.passes = replace(self.passes, audit=step)
        self.audits_passed += 1
        self.trail.audits.append(step)
        self.tensors_compared, self.bytes_compared = compared.tensors, compared.nbytes
        self.loss_audited = compared.loss_audited
        self.assurance.audited(step, compared.nbytes)

    def audit_skipped(self, step: int, reason: str) -> None:
        """Count an audit that was due and could not be made; each reason is said once."""
        self.audits_skipped += 1
        self.trail.audits.append(step)
        self.assurance.audits_skipped += 1
        if reason not in self._said:
            self._said.add(reason)
            log_line("warning", message=f"audit of step {step} skipped: {reason}", step=step)

    def weights_passed(self, step: int, rows: str, state: Mapping[str, Tensor] | None = None) -> None:
        """Record a passed weight check: digests of the weights, then of the optimizers' `state`."""
        state_tensors = len(state or ())
        self.trail.passed(step, rows[: len(rows) - ROW * state_tensors])
        self._state_digests = state_rows(state or {}, rows)
        self.passes = replace(self.passes, weights=step)
        if state_tensors:  # a comparison of nothing is no pass
            self.passes = replace(self.passes, optimizer_state=step)
            self.state_tensors_compared = state_tensors
        self.weight_checks_passed += 1
        self.assurance.compared()

    def applied(self, weight_checked: bool, audit_every: int | None = None) -> StepChecks:
        """Book the step that was just applied; what the reporter is told of it."""
        passes = self.passes
        audited = passes.audit == self.step
        self.assurance.applied(audited=audited, compared=weight_checked)
        last = (passes.audit, passes.weights, self.audits_skipped)
        layers = self.layers.of(self.step)
        return StepChecks(audited, weight_checked, *last, audit_every=audit_every, **layers)

    @property
    def passed_at_this_step(self) -> list[str]:
        """Which checks passed at this very step; empty: it is saved as nothing looked at it."""
        at = {
            "replay": self.passes.audit,
            "weights": self.passes.weights,
            "optimizer state": self.passes.optimizer_state,
        }
        return [what for what, step in at.items() if step == self.step]

    def manifest(self, world_size: int, digests: dict[str, list[int]]) -> dict[str, Any]:
        """What a checkpoint of this step carries; "passed" is a record, no proof that its state is clean."""
        return {
            "manifest_version": MANIFEST_VERSION,
            "digest_version": DIGEST_VERSION,
            "step": self.step,
            "world_size": world_size,
            "last_audit_pass": self.passes.audit,
            "last_weight_check_pass": self.passes.weights,
            "last_optimizer_state_pass": self.passes.optimizer_state,
            "passed_at_this_step": self.passed_at_this_step,
            "audits_passed": self.audits_passed,
            "audits_skipped": self.audits_skipped,
            "weight_checks_passed": self.weight_checks_passed,
            "tensors_compared": self.tensors_compared,
            "bytes_compared": self.bytes_compared,
            "state_tensors_compared": self.state_tensors_compared,
            "buffers_compared": self.buffers_compared,
            "loss_audited": self.loss_audited,
            "overflow_steps": self.overflow_steps,
            "steps_skipped": self.steps_skipped,
            "steps_retried": self.steps_retried,
            "warnings": self.warnings,
            **self.about,
            "assurance": self.assurance.plain(self.step),
            "layer_audits": self.layers.plain(),
            "notes": list(self.notes),
            "digests": digests,
            "state_digests": self._state_digests if self.passes.optimizer_state == self.step else {},
        }
