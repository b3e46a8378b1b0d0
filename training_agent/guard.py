"""The order of one step, and what users hold.

Comes in: a DDP model, its optimizer, optionally the loss function. Goes out: training as before, or
`SdcAlarm` on every rank before the update that would have spread a wrong number. The steps, top to bottom:

1. first forward of a step   decide from the schedule whether it is audited (`_begin_step`)
2. forward, backward         record start, gradients, norms (`_watch`, `checks.nonfinite`)
3. before the update         count over all ranks, replay, arbitrate, judge (`_before_update`)
4. after the update          compare weights, report progress (`_after_update`)
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NoReturn

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from . import _startup
from ._alarm import Sighting
from ._capture import Capture
from ._evidence import Depth, Evidence
from ._examine import AuditPass, Examiner
from ._latch import AlarmLatch
from ._ledger import Ledger, LoadedManifest
from ._phase import Phase
from ._ring import Ring
from ._startup import Setup
from ._warm_up import backward_from_outputs, warm_up
from ._watch import StepWatch
from .checkpoint import CheckpointStore
from .checks.nonfinite import GradientNorms
from .checks.replay import LossFunction, recompute
from .determinism import DeterministicMode, deterministic
from .errors import CheckpointError, ConfigurationError
from .report import Reporter, StepChecks
from .schedule import Schedule
from .settings import AgentSettings


def attach(
    ddp_model: nn.Module,
    optimizer: Optimizer,
    *,
    compute_loss: LossFunction | None = None,
    schedule: Schedule | None = None,
    step: int = 0,
    settings: AgentSettings | None = None,
    reporter: Reporter | None = None,
    checkpoints: CheckpointStore | None = None,
) -> Guard:
    """Guard a training loop; a collective, called once on every rank before the first forward.

    Parameters
    ----------
    ddp_model: the model wrapped in DistributedDataParallel.
    optimizer: its optimizer; `step()` will raise `SdcAlarm` when a check fires.
    compute_loss: `compute_loss(model, *args, **kwargs)` returns the loss tensor. The loop then calls
        `guard.compute_loss` instead, with the same arguments, and the whole loss function is audited. Without
        it only the model's own forward and its backward are ("loss function not audited").
    schedule: how often each check runs; None is `Schedule()`.
    step: updates applied so far, equal on all ranks; after a restart `guard.after_load` sets it.
    settings: None reads the environment, see `AgentSettings.from_env`.
    reporter: whom to tell; None leaves one log line per alarm.
    checkpoints: where alarms look for the checkpoint to come back on.

    Raises
    ------
    ConfigurationError: on every rank, when one of them cannot be guarded; the text says what to change.
    """
    setup = _startup.set_up(
        ddp_model, optimizer, compute_loss, schedule or Schedule(), step, settings, reporter, checkpoints
    )
    return Guard(setup, step)


class Guard:
    """Made by `attach`; lives until `close`."""

    def __init__(self, setup: Setup, step: int) -> None:
        self._setup = setup
        self._step = step
        self._phase = Phase.TRAINING
        self._started = False
        self._ledger = Ledger()
        self._determinism = DeterministicMode()
        self._latch = AlarmLatch(setup)
        self._norms = GradientNorms(list(setup.parameters.values()), lambda: self._phase is Phase.TRAINING)
        self._watch = StepWatch(setup.ddp.module, self._norms, setup.device)
        self._examiner = Examiner(setup, Ring(setup.comm, setup.device, self._recompute))
        self._hooks = [
            setup.ddp.register_forward_pre_hook(self._on_ddp_forward, with_kwargs=True),
            setup.ddp.module.register_forward_pre_hook(self._on_module_forward, with_kwargs=True),
            setup.ddp.module.register_forward_hook(self._on_module_output),
            setup.optimizer.register_step_pre_hook(self._before_update),
            setup.optimizer.register_step_post_hook(self._after_update),
        ]

    # -- what users read and call ----------------------------------------------------------------------

    @property
    def step(self) -> int:
        """Updates applied so far, over all starts; the step being computed is the next one."""
        return self._step

    @property
    def phase(self) -> Phase:
        """What the computation in progress is for."""
        return self._phase

    def compute_loss(self, model: nn.Module, *args: Any, **kwargs: Any) -> Tensor:
        """Call the loss function given to `attach` with the same arguments, and watch it."""
        compute = self._setup.compute_loss
        if compute is None:
            raise ConfigurationError(
                "guard.compute_loss() needs the loss function: pass attach(..., compute_loss=compute_loss)."
            )
        if self._phase is not Phase.TRAINING or not torch.is_grad_enabled():
            return compute(model, *args, **kwargs)
        self._begin_step(lambda: compute(model, *args, **kwargs), lambda loss: loss.backward())
        with self._watch.inside_loss(args, kwargs):
            loss = compute(model, *args, **kwargs)
        if not isinstance(loss, Tensor):
            raise ConfigurationError(
                f"compute_loss returned a {type(loss).__name__}; it must return the loss tensor."
            )
        self._watch.leave_loss(loss)
        return loss

    def before_save(self) -> None:
        """Refuse to save a state whose weights were not compared at this very step; no collective.

        Raises:
            SdcAlarm: an alarm was raised before.
            ConfigurationError: the step was no weight-check step.
        """
        self._latch.raise_again()
        if self._ledger.passes.weights != self._step:
            last = self._ledger.passes.weights
            raise ConfigurationError(
                f"The weights of step {self._step} were not compared (last passed: {last}). Save at steps "
                f"that are due: multiples of ckpt_every={self._setup.schedule.ckpt_every} or "
                f"check_every={self._setup.schedule.check_every}."
            )

    def manifest(self) -> dict[str, Any]:
        """What the checkpoint of this step carries for `after_load`: JSON-able."""
        return self._ledger.manifest(self._step, self._setup.comm.world, self._setup.ddp.module)

    def after_load(self, manifest: Mapping[str, Any]) -> None:
        """Take over a checkpoint: global step, file against manifest, replicas against each other; a
        collective.

        Call it after the state was loaded and before the first forward.

        Raises:
            CheckpointError: the loaded bits are not those that were saved, on every rank.
            SdcAlarm: replicas differ.
            ConfigurationError: it comes too late, or the manifest is not ours or not the same on all ranks.
        """
        if self._started:
            raise ConfigurationError("guard.after_load() must come before the first forward.")
        loaded = LoadedManifest.parse(manifest)
        damaged = loaded.compare(self._setup.ddp.module, self._setup.comm)
        self._step, self._ledger.passes = loaded.step, loaded.passes
        self._check_weights()  # names a rank that alone holds other bits than were saved
        if damaged:
            raise CheckpointError(damaged)

    def close(self) -> None:
        """Take all hooks away and stop reporting."""
        self._determinism.leave()
        self._watch.end()
        self._norms.remove()
        for hook in self._hooks:
            hook.remove()
        if self._setup.reporter is not None:
            self._setup.reporter.close()

    # -- 1. first forward of a step --------------------------------------------------------------------

    def _begin_step(self, forward: Callable[[], Any], backward: Callable[[Any], None]) -> None:
        self._latch.raise_again()
        if not self._started:
            self._start(forward, backward)
        if self._watch.open and not self._dropped():
            return
        audit = self._setup.schedule.audit_due(self._step + 1)
        self._watch.begin(audit=audit)
        if audit:
            self._determinism.enter()
        else:
            self._determinism.leave()

    def _dropped(self) -> bool:
        """Whether the loop threw the last gradients away without an update (as a GradScaler does)."""
        return self._norms.backwards > 0 and all(p.grad is None for p in self._setup.parameters.values())

    def _start(self, forward: Callable[[], Any], backward: Callable[[Any], None]) -> None:
        self._started = True
        setup = self._setup
        self._phase = Phase.WARM_UP
        try:
            strict = setup.schedule.audit_every is not None
            warm_up(setup.ddp, setup.device, forward, backward, strict=strict)
        finally:
            self._phase = Phase.TRAINING
        if setup.reporter is not None:
            setup.reporter.started(_startup.registration(setup, self._step or None))
        self._check_weights()

    # -- 2. forward and backward -----------------------------------------------------------------------

    def _on_ddp_forward(self, ddp: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        if self._watching and not self._watch.in_loss:
            self._begin_step(lambda: ddp(*args, **kwargs), backward_from_outputs)

    def _on_module_forward(self, _module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        if self._watching and self._watch.open:
            self._watch.enter_module(args, kwargs)

    def _on_module_output(self, _module: nn.Module, _args: tuple[Any, ...], output: Any) -> None:
        if self._watching and self._watch.open:
            self._watch.leave_module(output)

    @property
    def _watching(self) -> bool:
        return self._phase is Phase.TRAINING and torch.is_grad_enabled()

    # -- 3. before the update --------------------------------------------------------------------------

    def _before_update(self, _optimizer: Optimizer, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        self._latch.raise_again()
        _startup.refuse_closure(args, kwargs)
        obstacle = self._watch.obstacle() if self._watch.open else "no forward was seen"
        own = self._norms.local_nonfinite(self._setup.device)
        reduced = self._norms.reduced_nonfinite(self._setup.device)
        blocked = torch.tensor(int(obstacle is not None), device=self._setup.device)
        counts = self._setup.comm.total_tensor(torch.stack([own, reduced, blocked]))
        try:
            if counts[0] or (self._watch.open and self._watch.audit):
                flags = self._setup.comm.gather(int(own)) if counts[0] else []
                ranks = tuple(rank for rank, flag in enumerate(flags) if flag)
                self._examine(ranks, blocked=counts[2] > 0, obstacle=obstacle)
            if counts[1]:
                self._alarm(self._examiner.reduced(self._step + 1))
        finally:
            self._determinism.leave()

    def _examine(self, nonfinite: tuple[int, ...], *, blocked: bool, obstacle: str | None) -> None:
        """Replay the step around the ring; returns when it passed or could not be compared."""
        watch, step = self._watch, self._step + 1
        outcome: AuditPass | Sighting | str
        with deterministic():
            if blocked or watch.capture is None:
                outcome = self._examiner.unexamined(step, obstacle, nonfinite)
            else:
                outcome = self._examiner.examine(step, watch.capture, watch.evidence(), nonfinite)
        if isinstance(outcome, Sighting):
            self._alarm(outcome)
        if isinstance(outcome, AuditPass):
            self._ledger.audit_passed(step, outcome)
        else:
            self._ledger.audit_skipped(step, outcome)

    def _recompute(self, capture: Capture, phase: Phase, depth: Depth) -> Evidence:
        self._phase = phase
        try:
            return recompute(self._setup.ddp, self._setup.compute_loss, capture, depth, self._setup.device)
        finally:
            self._phase = Phase.TRAINING

    # -- 4. after the update ---------------------------------------------------------------------------

    def _after_update(self, _optimizer: Optimizer, _args: tuple[Any, ...], _kwargs: dict[str, Any]) -> None:
        self._step += 1
        self._watch.end()
        due = self._setup.schedule.weights_due(self._step)
        if due:
            self._check_weights()
        if self._setup.reporter is not None:
            passes = self._ledger.passes
            audited = passes.audit == self._step
            self._setup.reporter.progress(self._step, StepChecks(audited, due, passes.audit, passes.weights))

    def _check_weights(self) -> None:
        """Check 3 on the state as it is now."""
        divergence = self._examiner.compare_weights()
        if divergence:
            self._alarm(self._examiner.weights(self._step, divergence))
        self._ledger.weights_passed(self._step)

    # -- an alarm, on every rank alike -----------------------------------------------------------------

    def _alarm(self, sighting: Sighting) -> NoReturn:
        self._watch.end()
        self._setup.optimizer.zero_grad(set_to_none=True)
        self._latch.trip(sighting, self._ledger.passes)
