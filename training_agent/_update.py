"""Judges each update right before it is applied, at once or one step later, and books it afterwards.

Comes in: what `_watch` and `checks.nonfinite` saw of a step. Goes out: nothing, or a dropped step, or
`SdcAlarm`, on every rank alike. Next: the optimizer's own step; then check 3.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import NoReturn

from torch import Tensor
from torch.optim import Optimizer

from ._alarm import Sighting
from ._capture import DeviceState
from ._evidence import Depth
from ._examine import AuditPass, Examiner, ReplayOff
from ._gate import Count, Gate, Tally, ranks_that
from ._latch import AlarmLatch
from ._layers import LayerAudits
from ._ledger import Ledger
from ._masters import drop_gradients
from ._overflow import Overflows
from ._pending import Pending
from ._reduction import ReductionCheck, reduction_check
from ._refusals import refuse_update
from ._replayed import replayed
from ._retry import retried
from ._rhythm import Rhythm
from ._sightings import reduced
from ._startup import Setup
from ._statistics import StatisticsOff
from ._step_record import StepRecord
from ._surroundings import Surroundings
from ._walk import copied_buffers
from ._watch import StepWatch
from ._weight_check import WeightCheck
from .checks.nonfinite import GradientNorms
from .contract import Check
from .determinism import DeterministicMode
from .pace import Pace
from .policy import Policy


@dataclass(slots=True)
class Update:
    """The update of each step; every method is called on all ranks alike."""

    setup: Setup
    watch: StepWatch
    norms: GradientNorms
    examiner: Examiner
    ledger: Ledger
    latch: AlarmLatch
    determinism: DeterministicMode
    surroundings: Surroundings
    depth: Depth | None = field(init=False)  # of audits; None: replays are off
    gate: Gate = field(init=False)
    weights: WeightCheck = field(init=False)
    rhythm: Rhythm = field(init=False)
    deferred: bool = field(init=False)
    reduction: ReductionCheck | None = field(init=False)
    layers: LayerAudits = field(init=False)
    overflows: Overflows = field(init=False)
    pending: Pending | None = None
    _judged: bool = False
    _applies: bool = True
    _stepping: bool = False  # an optimizer's step has begun
    _booked: bool = False

    def __post_init__(self) -> None:
        setup = self.setup
        self.depth = setup.depth
        self.weights = WeightCheck(setup, self.examiner, self.ledger)
        self.gate = Gate(setup.optimizers, setup.comm, setup.device)
        self.reduction = reduction_check(setup, self.norms, self.ledger.note)
        self.rhythm = Rhythm(setup.comm, Pace(setup.schedule, self.ledger.step))
        self.layers = LayerAudits(setup, self.watch, self.norms, self.examiner, self.ledger)
        self.overflows = Overflows(setup, self.ledger, self.norms)
        # A step that is repeated, or applied with a warning, must be judged before its update.
        self.deferred = setup.may_defer and self.gate.on_device

    # -- before ----------------------------------------------------------------------------------------

    def begin(self) -> None:
        """The first forward of a step: watch it, with the kernels that it is to run."""
        setup, ledger = self.setup, self.ledger
        self._judged, self._applies, self.overflows.now = False, True, False
        ledger.assurance.begin()
        due = self.rhythm.due(ledger.step + 1)
        audit = due and self.depth is not None
        self.examiner.begin(audit=audit)
        turn = 0 if self.examiner.ahead else ledger.audits_due
        complete = self.examiner.send_ahead if audit else None
        self.watch.begin(audit=audit, depth=self.depth or Depth.BITS, turn=turn, complete=complete)
        if due and not audit:
            ledger.audit_skipped(ledger.step + 1, setup.replay_off or "replay audits are off")
            self.rhythm.pace.audited(ledger.step + 1)
        self.determinism.switch(setup.schedule.deterministic_step(audit))
        self.layers.begin(ledger.step + 1, self.depth, audit=due)

    def restart(self, step: int) -> None:
        """Training goes on from another step."""
        self.rhythm.restart(step, self.ledger.passes.audit or 0)
        self.layers.restart(step)

    def end(self) -> None:
        """The loop is over, perhaps on this rank only: no collective."""
        self.examiner.end()
        self.layers.end()

    def before(self, optimizer: Optimizer) -> None:
        """Judge the step, or in deferred mode the one before, and shut the gate if this one is suspicious.

        Raises:
            SdcAlarm: a check fired and the policy stops.
            ConfigurationError: see `refuse_update`.
        """
        self.latch.raise_again()
        refuse_update()
        if not self._judged:  # else the second of several optimizers: the gate holds for it as well
            self.drain()
        # A subclass's step may call its parent's, with all hooks: two begin, and it is one update.
        self._booked, self._stepping = self._booked and self._stepping and self._judged, True
        if not self._judged:  # with several optimizers the first to step is judged for all
            self._judged = True
            try:
                self._enter_judgement(optimizer)
            finally:
                self.determinism.leave()
                self.watch.end()
        if self.pending is not None:  # nobody would open it again after what the host has judged
            self.gate.hold(self.pending.count, optimizer)
        if not self._applies:
            drop_gradients(self.setup)

    def _enter_judgement(self, optimizer: Optimizer) -> None:
        record = self.watch.record(self.ledger.step + 1)
        count, own = self.count(optimizer)
        layer = self.layers.armed
        waits = self.deferred and self.gate.keeps_state and not self.overflows.scaled_apart(optimizer)
        if waits and not record.audit and not layer:
            state = DeviceState.now(self.setup.device, copied_buffers(self.setup.module))
            self.pending = Pending(record, count, own, state)
            self.rhythm.judged(record.step, audit=False)
            self.layers.clock(record.step, audit=False)
            return
        self.ledger.computed(record, self.setup.compute_loss)
        tally = self.overflows.told(count.read(), optimizer)
        self._applies = not self.overflows.drops
        self._respond(record, self.judge(record, tally, own))
        done = self._applies and not tally.overflow  # a dropped step comes again, with its audit
        self.rhythm.judged(record.step, audit=record.audit and done)
        self.layers.clock(record.step, audit=layer and done)
        self.rhythm.seen(record.step, tally)

    def count(self, optimizer: Optimizer) -> tuple[Count, Tensor]:
        device = self.setup.device
        own, reduced = self.norms.local_nonfinite(device), self.norms.reduced_nonfinite(device)
        checksum = None if self.reduction is None else self.reduction.flag()
        sizes = (self.watch.loss(), self.norms.reduced_norm(device)) if self.rhythm.by_outcome else ()
        return self.gate.count(own, reduced, optimizer, checksum, sizes), own

    def drain(self) -> None:
        """Deferred mode: read what the last step's flags say.

        Raises:
            SdcAlarm: with that step; weights, moments, buffers, counter and RNG are those before its update.
        """
        pending, self.pending = self.pending, None
        if pending is None:
            return
        tally = self.overflows.told_late(pending.count.read())
        self.rhythm.seen(pending.record.step, tally)
        if not tally.suspicious:
            if pending.checks is not None and self.setup.reporter is not None:
                self.setup.reporter.progress(pending.record.step, pending.checks)
            self.ledger.overflow_free()
            return
        self.ledger.step = pending.record.step - 1  # it was not applied
        self.gate.open()
        sighting = self.judge(pending.record, tally, pending.own)
        if sighting is None:  # overflow
            return
        if self.setup.policy is Policy.SKIP and sighting.check is not Check.WEIGHTS:
            self._applies = self._applies and not self._judged  # by optimizers that are yet to step
            self.ledger.step_skipped(sighting)
            self.rhythm.let_pass(sighting)
            return
        pending.state.put_back(self.setup.device, self.setup.module)
        self.alarm(sighting)

    def skipped_by_loop(self) -> None:
        """The loop threw the last gradients away, as a GradScaler without a fused optimizer does."""
        count, own = self.count(self.setup.optimizers[0])
        tally = count.read()
        if tally.suspicious and (sighting := self.overflows.sighting(self.ledger.step + 1, tally, own)):
            self.alarm(sighting)

    # -- judgement -------------------------------------------------------------------------------------

    def judge(self, record: StepRecord, tally: Tally, own: Tensor) -> Sighting | None:
        """What is wrong with a step; None when it may be applied (or a GradScaler skips it)."""
        if tally.overflow or tally.nonfinite:
            self.layers.end()  # its turn comes with the next step
        if tally.overflow:
            return self.overflows.sighting(record.step, tally, own)
        self.ledger.overflow_free()
        sighting = None
        if tally.nonfinite or record.audit:
            sighting = self._examine(record, ranks_that(self.setup.comm, tally.nonfinite, own))
        elif self.layers.armed:
            sighting = self.layers.judge(record)
        if sighting is not None:
            return sighting
        if tally.checksum and not tally.reduced and self.reduction is not None:
            return self.reduction.sighting(record.step)
        return reduced(record.step, self.setup.naming) if tally.reduced else None

    def _examine(self, record: StepRecord, nonfinite: tuple[int, ...]) -> Sighting | None:
        """Replay the step around the ring; None when it passed or could not be compared."""
        outcome = replayed(self.setup, self.examiner, record, nonfinite)
        if isinstance(outcome, Sighting):
            return outcome
        if isinstance(outcome, AuditPass):
            self.ledger.audit_passed(record.step, outcome)
        elif isinstance(outcome, (ReplayOff, StatisticsOff)):
            self.give_up(outcome)
            self.ledger.audit_skipped(record.step, outcome.reason)
        else:
            self.ledger.audit_skipped(record.step, outcome)
        return None

    def give_up(self, what: ReplayOff | StatisticsOff) -> None:
        """From now on audits compare less, or are skipped and counted; checks 1 and 3 go on."""
        if isinstance(what, StatisticsOff):
            self.watch.statistics.compared = False
            self.ledger.note(f"running statistics are not compared: {what.reason}")
            return
        self.depth = None
        self.ledger.note(f"replay audits are off: {what.reason}")

    # -- the answer ------------------------------------------------------------------------------------

    def _respond(self, record: StepRecord, sighting: Sighting | None) -> None:
        if sighting is None:
            return
        policy = self.setup.policy
        if sighting.check is Check.WEIGHTS and policy is not Policy.WARN:
            policy = Policy.STOP
        if policy is Policy.WARN:
            self.ledger.warned(sighting)
        elif policy is Policy.SKIP:
            self._applies = False
            self.ledger.step_skipped(sighting)
        elif policy is Policy.STOP or not retried(self, record):
            self.alarm(sighting)
        self.rhythm.let_pass(sighting)

    def alarm(self, sighting: Sighting) -> NoReturn:
        """Drop the gradients, tell, raise; in deferred mode a step is in progress."""
        self.determinism.leave()
        self.watch.end()
        drop_gradients(self.setup)
        self.latch.trip(sighting, self.ledger, self.examiner.disputed)

    # -- after -----------------------------------------------------------------------------------------

    def after(self, optimizer: Optimizer) -> None:
        """Book the step, compare weights when that is due, report."""
        self.gate.release(optimizer)
        self._stepping = False
        ends = self._applies and optimizer is self.setup.optimizers[-1]
        if not ends or self.overflows.passed_over(optimizer):
            return
        again, self._booked = self._booked, True
        step = self.ledger.step = self.ledger.step + (not again)
        due = self.setup.schedule.weights_due(step) and self.setup.weights_off is None
        if due:
            self.drain()
            if self.ledger.step != step:  # it was skipped after all
                return
            self.check_weights(state=self.setup.schedule.state_due(step))
        if again:
            return
        applied = self.ledger.applied(due, self.rhythm.every)
        checks = replace(applied, seconds=self.examiner.stopwatch.take())
        if self.pending is not None:
            self.pending.checks = checks
        elif self.setup.reporter is not None:
            self.setup.reporter.progress(step, checks)

    def check_weights(self, *, state: bool = False) -> None:
        """Check 3 as things are now; `state`: also on what is saved beside the weights."""
        sighting = self.weights.look(state=state)
        if sighting is not None:
            if self.setup.policy is not Policy.WARN:
                self.alarm(sighting)
            self.ledger.warned(sighting)
