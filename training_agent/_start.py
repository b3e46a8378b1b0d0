"""What every start does at its first forward: warm-up, registration, weights, preflight, in this order.

Comes in: the first micro-batch. Goes out: DDP in its final layout, and how deep audits can compare; or
`SdcAlarm` before the first update. Next: the first step is computed.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from typing import Any

from . import _attention, _capture, _preflight_only
from ._alarm import Sighting, versions, what_runs
from ._arguments import once_more, with_containers_of_its_own
from ._capture import Capture, Unit
from ._evidence import Depth, Evidence
from ._examine import ReplayOff
from ._large import written_in_passing
from ._phase import Phase
from ._preflight import Preflight, preflight
from ._refusals import anomaly_mode
from ._startup import Setup
from ._statistics import StatisticsOff
from ._step_record import MicroBatch
from ._update import Update
from ._walk import copied_buffers
from ._warm_up import warm_up
from ._watch import StepWatch
from .contract import NodeRegistration
from .determinism import deterministic
from .errors import ConfigurationError
from .log_line import log_line, utc_now


@dataclass(slots=True)
class Start:
    """One start of the job; `during` sets the guard's phase around a block."""

    setup: Setup
    watch: StepWatch
    update: Update
    recompute: Callable[[Capture, Phase, Depth], Evidence]
    during: Callable[[Phase], AbstractContextManager[None]]
    done: bool = False
    _preflight_due: bool = False
    _registered: bool = False

    def register(self, resumed_from: int | None) -> None:
        """Tell where the ranks run, once, before anything of this attempt can alarm; None: from scratch."""
        if self.setup.reporter is not None and not self._registered and not _preflight_only.asked():
            self._registered = True
            self.setup.reporter.started(registration(self.setup, resumed_from))

    def warm_up(self, forward: Callable[[], Any], backward: Callable[[Any], None]) -> None:
        """Everything that needs no capture; once."""
        if self.done:
            return
        setup = self.setup
        if refused := setup.comm.complaints(anomaly_mode()):
            raise ConfigurationError(refused[0])
        schedule = setup.schedule
        audits = schedule.audit_every is not None
        undone = self.watch.written.undone(forward, setup.comm.largest) if setup.sharding is None else None
        with self.during(Phase.WARM_UP):
            strict, forced = schedule.deterministic_step(audits), schedule.forced
            passes = (setup.outer, setup.device, forward, backward)
            warm_up(*passes, strict=strict, forced=forced, inside=undone)
        self.done = True  # a forward that failed, and that the loop tries again, begins once more
        if setup.comm.is_first:
            attention = {"attention": _attention.names(_attention.reproducible(_attention.allowed()))}
            said = attention if forced else {}
            log_line("kernels", kernels=schedule.kernels.value, audited=schedule.kernels.audited, **said)
        self.register(self.update.ledger.step or None)
        if setup.weights_off is None:
            self.update.check_weights()
        self.update.weights.steady.begin(self.update.ledger.step)
        if lost := setup.comm.complaints(", ".join(sorted(self.watch.written.lost)[:3])):
            raise ConfigurationError(
                f"The model's forward writes weights ({lost[0]}), as a start and each replay would too, "
                "and they are too large to be kept aside. Write them in the loop, after optimizer.step()."
            )
        large = self.update.surroundings.large
        if lost := setup.comm.complaints(large.shown() if large.lost else ""):
            raise ConfigurationError(f"A start changed bits of the run: {written_in_passing(lost[0])}.")
        if self.update.depth is not None and (names := setup.comm.complaints(large.shown())):
            self.update.give_up(ReplayOff(written_in_passing(names[0])))
        again = ", ".join(sorted(self.watch.written.again)[:3])
        if audits and self.update.depth is not None and (names := setup.comm.complaints(again)):
            self.update.give_up(
                ReplayOff(f"the model's forward writes weights, each time others: {names[0]}")
            )
        self._preflight_due = audits and self.update.depth is not None
        if not self._preflight_due:
            self._leave_if_asked()

    def preflight(self, unit: Unit, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """Is this model reproducible here, and on a peer? Once, on the first micro-batch."""
        if not self._preflight_due:
            return
        self._preflight_due = False
        setup, update = self.setup, self.update
        args, kwargs = with_containers_of_its_own((args, kwargs))
        capture = _capture.take(unit, setup.module, setup.device, args, kwargs)
        capture.buffers = copied_buffers(setup.module)
        found = self._look(capture)
        if found.statistics is not None:
            update.give_up(StatisticsOff(found.statistics))
            found = self._look(capture)
        update.depth = found.depth
        if found.note is not None:
            update.ledger.note(found.note)
            update.begin()  # the step in progress was begun at the depth that was hoped for
            self._leave_if_asked()
            return
        with deterministic(setup.schedule.deterministic):
            step = update.ledger.step + 1
            batch = MicroBatch(capture, 0)
            outcome = update.examiner.examine(step, batch, found.evidence, (), at_start=True)
        if isinstance(outcome, (ReplayOff, StatisticsOff)):
            update.give_up(outcome)
            update.begin()  # the step in progress may have been begun as an audit
        elif isinstance(outcome, Sighting):
            update.alarm(outcome)
        self._leave_if_asked()

    def _look(self, capture: Capture) -> Preflight:
        setup = self.setup

        def run(depth: Depth) -> Evidence:
            args, kwargs = once_more((capture.args, capture.kwargs), setup.device)
            return self.recompute(replace(capture, args=args, kwargs=kwargs), Phase.REPLAY, depth)

        return preflight(
            setup.comm,
            len(setup.parameters),
            run,
            self.update.depth or Depth.OUTPUT,
            strict=setup.schedule.deterministic,
            sharding=setup.sharding,
        )

    def _leave_if_asked(self) -> None:
        _preflight_only.leave_if_asked(self.setup, self.update.depth, tuple(self.update.ledger.notes))


def registration(setup: Setup, resumed_from: int | None) -> NodeRegistration | None:
    """What this node tells the pipeline, from its first rank; None on the others."""
    rank_map, settings, rank = setup.rank_map, setup.settings, setup.comm.rank
    node = rank_map.node_of(rank)
    ranks = rank_map.ranks_on(node)
    if rank != min(ranks, key=lambda r: rank_map.place(r).local_rank):
        return None
    return NodeRegistration(
        cluster=settings.cluster,
        job=settings.job,
        node=node,
        instance_id=rank_map.place(rank).instance_id,
        places=tuple(rank_map.place(r) for r in ranks),
        world_size=rank_map.size,
        nodes=len(rank_map.nodes),
        time=utc_now(),
        resumed_from_step=resumed_from,
        versions={**versions(), **what_runs(settings.image)},
    )
