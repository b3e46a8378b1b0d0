"""The order of one step, and what users hold.

Comes in: a DDP model, its optimizer, optionally the loss function. Goes out: training as before, or
`SdcAlarm` on every rank before the update that would have spread a wrong number. The steps, top to bottom:

1. first forward of a start  warm-up, registration, weights, preflight (`_start.Start`)
2. first forward of a step   decide from the schedule whether it is audited (`_update.begin`)
3. forward, backward         record start, gradients, norms (`_watch`, `checks.nonfinite`)
4. before the update         count over all ranks, replay, arbitrate, judge (`_update.before`)
5. after the update          compare weights, report progress (`_update.after`)
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from . import _startup
from ._arguments import discarded, refuse_iterators
from ._capture import Capture, Unit
from ._data_path import RebuildBatch
from ._evidence import Depth, Evidence
from ._examine import Examiner
from ._farewell import Farewell
from ._gradients import local_gradients
from ._hooks import ModelHooks
from ._kept import KeptValues
from ._latch import AlarmLatch
from ._ledger import Ledger
from ._manifest import LoadedManifest, common_digests
from ._phase import Phase
from ._refusals import refuse_forward, wrap_closure
from ._replayer import Replayer
from ._ring import Ring
from ._start import Start
from ._startup import Setup, Wishes
from ._surroundings import surroundings
from ._update import Update
from ._warm_up import backward_from_outputs
from ._watch import watch_of
from .checkpoint_folder import Checkpoints
from .checks.replay import LossFunction
from .determinism import DeterministicMode
from .errors import CheckpointError, ConfigurationError
from .observers import quiet
from .policy import Mode, Naming, Policy
from .report import GroupReporter, Reporter
from .schedule import Schedule
from .settings import AgentSettings


def attach(
    ddp_model: nn.Module,
    optimizer: Optimizer | Sequence[Optimizer],
    *,
    compute_loss: LossFunction | None = None,
    schedule: Schedule | None = None,
    step: int = 0,
    settings: AgentSettings | None = None,
    reporter: Reporter | None = None,
    checkpoints: Checkpoints | None = None,
    mode: Mode | str = Mode.IMMEDIATE,
    policy: Policy | str = Policy.STOP,
    finish: Callable[[], None] | None = None,
    naming: Naming | str = Naming.FULL,
    rebuild_batch: RebuildBatch | None = None,
) -> Guard:
    """Guard a training loop; a collective, called once on every rank before the first forward.

    Parameters
    ----------
    ddp_model: the model wrapped in DistributedDataParallel (or `torch.compile` of that); or sharded by
        `fully_shard` over a mesh of replicas and shards (HSDP).
    optimizer: its optimizer; `step()` will raise `SdcAlarm` when a check fires. Several: all of them, in the
        order in which they step; the last one's step ends the update.
    compute_loss: `compute_loss(model, *args, **kwargs)` returns the loss tensor. The loop then calls
        `guard.compute_loss` instead, with the same arguments, and the whole loss function is audited. Without
        it only the model's own forward and its backward are ("loss function not audited"), unless the model
        itself returns the loss.
    schedule: how often each check runs; None is `Schedule()`.
    step: updates applied so far, equal on all ranks; after a restart `guard.after_load` sets it.
    settings: None reads the environment, see `AgentSettings.from_env`.
    reporter: whom to tell; None leaves one log line per alarm.
    checkpoints: where alarms look for the checkpoint to come back on.
    mode: "immediate": raised in the step, one host synchronisation. "deferred" (optimizers with `fused=True`;
        others stay immediate): raised at the next `step()`, `before_save()` or `close()`; weights, moments,
        buffers, counter and RNG are those before the flagged step, sampler and scheduler are not.
    policy: "stop", "retry", "skip" or "warn", see `training_agent.policy.Policy`.
    finish: what the loop does between backward and `step()`, such as clipping: a retried step repeats it.
    naming: "full", or "lazy": name from small 1-D gradients only, see `training_agent.policy.Naming`.
    rebuild_batch: `rebuild_batch(step, rank)` gives the batch that `compute_loss` got there, under
        accumulation the list of them: audits then compare the data too. Nobody is named for data.

    Raises
    ------
    ConfigurationError: on every rank, when one of them cannot be guarded; the text says what to change.
    """
    schedule = Schedule() if schedule is None else schedule
    how = (mode, policy, finish, naming, rebuild_batch)
    wishes = Wishes(compute_loss, schedule, step, settings, reporter, checkpoints, *how)
    setup = _startup.set_up(ddp_model, optimizer, wishes)
    if isinstance(setup.reporter, GroupReporter):
        setup.reporter.among(setup.rank_map.places)
    return Guard(setup, step)


class Guard:
    """Made by `attach`; lives until `close`."""

    def __init__(self, setup: Setup, step: int) -> None:
        self._setup = setup
        self._phase = Phase.TRAINING
        self._ledger = Ledger.begun(step, setup)
        self._determinism = DeterministicMode(attention=setup.schedule.forced)
        leaves, self._norms = local_gradients(setup, lambda: self._phase is Phase.TRAINING)
        self._surroundings = around = surroundings(setup)
        self._watch = watch_of(setup, self._norms, leaves, around.kept)
        self._replayer = Replayer(setup, leaves, self._watch.statistics)
        self._latch = AlarmLatch(setup, self._replayer)
        ring = Ring(setup.comm, setup.device, self._recompute, setup.sharding is not None)
        books = (self._ledger, self._latch, self._determinism, around)
        examiner = Examiner(setup, ring, around)
        self._update = Update(setup, self._watch, self._norms, examiner, *books)
        self._start = Start(setup, self._watch, self._update, self._recompute, self._during)
        for sentence in setup.switched_off:
            self._ledger.note(sentence)
        hooks = self._on_module_forward, self._on_module_output, self._on_outer_forward
        self._hooks: list[Any] = [ModelHooks(setup.module, setup.outer, *hooks)]
        self._watch.outside = self._hooks[0].outside
        for optimizer in setup.optimizers:
            self._hooks.append(optimizer.register_step_pre_hook(self._before_update))
            self._hooks.append(optimizer.register_step_post_hook(self._after_update))
        self._farewell = Farewell(self._update)
        self._farewell.expect()

    # -- what users read and call ----------------------------------------------------------------------

    @property
    def step(self) -> int:
        """Updates applied so far, over all starts; the step being computed is the next one."""
        return self._ledger.step

    @property
    def phase(self) -> Phase:
        """What the computation in progress is for."""
        return self._phase

    def compute_loss(self, model: nn.Module, *args: Any, **kwargs: Any) -> Tensor:
        """Call the loss function given to `attach` with the same arguments, and watch it."""
        compute = self._setup.compute_loss
        if compute is None:
            raise ConfigurationError("guard.compute_loss() needs attach(..., compute_loss=compute_loss).")
        if self._phase is not Phase.TRAINING or not torch.is_grad_enabled():
            return compute(model, *args, **kwargs)
        self._replayer.called(model)
        refuse_iterators((args, kwargs))
        forward = discarded(partial(compute, model), args, kwargs, self._setup.device)
        self._begin_step(forward, lambda loss: loss.backward())
        self._start.preflight(Unit.LOSS, args, kwargs)
        with self._determinism.explained(), self._watch.inside_loss(args, kwargs):
            loss = compute(model, *args, **kwargs)
        if not isinstance(loss, Tensor):
            raise ConfigurationError(f"compute_loss returned a {type(loss).__name__}, not the loss tensor.")
        self._watch.leave_loss(loss)
        return loss

    def before_save(self, *, together: bool = False) -> None:
        """Refuse to save a state whose weights were not compared at this step; all ranks call it.

        Deferred mode judges the last step first. With `Schedule(check_on_checkpoint=False)` it may be saved:
        "passed_at_this_step" of the manifest is then empty. `together`: what was not compared is now, moments
        too; without, a save at a weight check that did not look at those is noted.

        Raises:
            SdcAlarm: an alarm was raised before, or now.
            ConfigurationError: the step was no weight-check step.
        """
        self._latch.raise_again()
        self._update.drain()
        if not together:
            self._update.weights.require_seen()
        elif self._update.weights.unseen:
            self._update.check_weights(state=self._setup.schedule.optimizer_state)

    def manifest(self) -> dict[str, Any]:
        """What the checkpoint of this step carries for `after_load`: JSON-able. A collective under HSDP."""
        comm = self._setup.comm
        return self._ledger.manifest(comm.world, common_digests(self._setup.module, comm, self._setup.own))

    def after_load(self, manifest: Mapping[str, Any]) -> None:
        """Take over a checkpoint: global step, file against manifest, replicas against each other.

        A collective; call it after the state was loaded and before the first forward.

        Raises:
            CheckpointError: the loaded bits are not those that were saved, on every rank.
            SdcAlarm: replicas differ.
            ConfigurationError: on every rank: on one it comes too late, or with another manifest than ours.
        """
        late = "guard.after_load() must come before the first forward." if self._start.done else ""
        loaded = LoadedManifest.read(manifest, self._setup.comm, late)
        damaged = loaded.compare(self._setup.module, self._update.weights.optimizer_state(), self._setup.comm)
        self._ledger.resume(loaded, manifest)
        self._update.restart(loaded.step)
        self._start.register(loaded.step)
        if self._setup.weights_off is None:  # names a rank that alone holds other bits than were saved
            self._update.check_weights(state=self._setup.schedule.optimizer_state)
        if damaged:
            raise CheckpointError(damaged)

    def close(self) -> None:
        """Take all hooks away, stop reporting; deferred mode judges the last step first (SdcAlarm)."""
        try:
            self._update.drain()
        finally:
            self.abandon()

    def abandon(self) -> None:
        """Like `close` without a judgement, for a loop that failed: no collective."""
        self._farewell.cancel()
        self._watch.end()
        self._update.end()
        self._determinism.leave()  # after whatever a block of the step in progress has switched inside it
        self._norms.remove()
        for hook in self._hooks:
            hook.remove()
        if self._setup.reporter is not None:
            self._setup.reporter.close()

    # -- 1. and 2. first forward -----------------------------------------------------------------------

    def _begin_step(self, forward: Callable[[], Any], backward: Callable[[Any], None]) -> None:
        self._latch.raise_again()
        refuse_forward(self._setup.outer)
        self._start.warm_up(forward, backward)
        if self._watch.open:
            if not self._norms.dropped():
                return
            self._update.skipped_by_loop()
        self._update.begin()

    # -- 3. forward and backward -----------------------------------------------------------------------

    def _on_outer_forward(self, outer: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        if self._phase is Phase.TRAINING:
            self._update.weights.steady.before_broadcast()
        if self._watching and not self._watch.in_loss:
            self._begin_step(discarded(outer, args, kwargs, self._setup.device), backward_from_outputs)

    def _on_module_forward(self, _module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        if self._phase is Phase.TRAINING:
            self._update.weights.steady.after_broadcast()
        if self._watching and self._watch.open:
            self._start.preflight(Unit.MODULE, args, kwargs)
            self._watch.enter_module(args, kwargs)

    def _on_module_output(self, _module: nn.Module, _args: tuple[Any, ...], output: Any) -> Any:
        if self._phase in (Phase.REPLAY, Phase.ARBITRATION):
            self._replayer.module_returned(output)
        return self._watch.leave_module(output) if self._watching and self._watch.open else None

    @property
    def _watching(self) -> bool:
        return self._phase is Phase.TRAINING and torch.is_grad_enabled()

    def _recompute(self, capture: Capture, phase: Phase, depth: Depth) -> Evidence:
        kept = capture.kept if capture.whole is None else capture.whole.kept
        with self._during(phase, kept):
            return self._replayer.recompute(capture, depth)

    @contextmanager
    def _during(self, phase: Phase, kept: KeptValues | None = None) -> Iterator[None]:
        before, self._phase = self._phase, phase
        try:
            with quiet(True), self._surroundings.unchanged(kept):
                yield
        finally:
            self._phase = before

    # -- 4. and 5. the update --------------------------------------------------------------------------

    def _before_update(
        self, optimizer: Optimizer, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> tuple[tuple[Any, ...], dict[str, Any]] | None:
        self._latch.raise_again()
        wrapped = wrap_closure(args, kwargs, lambda: self._update.before(optimizer))
        if wrapped is None:
            self._update.before(optimizer)
        return wrapped

    def _after_update(self, optimizer: Optimizer, _args: tuple[Any, ...], _kwargs: dict[str, Any]) -> None:
        self._update.after(optimizer)
