"""A launch of `sdc bisect`: the user's own script, from a given checkpoint, compared at points, then ended.

In: the plan in the file that SDC_BISECT names, and applied steps. Out: one line per point in the plan's
record; exit code 0 at the first point that differs, or at the last. Nothing is reported, nothing kept.
"""

from __future__ import annotations

import json
import os
from dataclasses import asdict, dataclass
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING

from . import exit_codes
from .contract import Alarm, Env, NodeRegistration
from .errors import ConfigurationError
from .log_line import log_line
from .report.types import StepChecks

if TYPE_CHECKING:
    from torch import nn

    from ._comm import Comm

FAREWELL = timedelta(seconds=10)


@dataclass(frozen=True, slots=True)
class Plan:
    """What one launch computes."""

    start: str  # folder of the checkpoint; "": from scratch
    start_step: int
    world: int  # ranks that the job had; 0: unknown
    points: tuple[tuple[int, str], ...]  # steps after which the weights are compared, ascending
    record: str  # file that gets one JSON line per point
    audits: tuple[int, ...] = ()  # steps that the job audited, for schedules whose pace is their own
    layers: tuple[int, ...] = ()  # steps with a layer audit, likewise

    def save(self, path: Path) -> None:
        """Write it for the launch."""
        path.write_text(json.dumps(asdict(self)))


def plan() -> Plan | None:
    """The plan of this launch; None for every other one."""
    path = os.environ.get(Env.BISECT)
    if not path:
        return None
    plain = json.loads(Path(path).read_text())
    points = tuple((int(s), str(d)) for s, d in plain["points"])
    steps = {name: tuple(plain.get(name, ())) for name in ("audits", "layers")}
    return Plan(**{**plain, "points": points, **steps})


def audits() -> frozenset[int] | None:
    """The steps that the replayed job audited; None where nothing is replayed."""
    found = plan()
    return None if found is None else frozenset(found.audits)


def layer_audits() -> frozenset[int] | None:
    """The same of layer audits."""
    found = plan()
    return None if found is None else frozenset(found.layers)


class BisectReporter:
    """Stands in the place of the job's reporter, on every rank."""

    def __init__(self, plan: Plan, module: nn.Module, comm: Comm) -> None:
        if plan.world not in (0, comm.world):
            raise ConfigurationError(
                f"sdc bisect: the job had {plan.world} ranks, this launch has {comm.world}; sums over "
                "another number of ranks have other bits. Launch as many trusted GPUs."
            )
        self._plan, self._module, self._comm = plan, module, comm
        self._expected = dict(plan.points)
        self._began = False

    def started(self, registration: NodeRegistration | None) -> None:
        """Nobody is told of a replay."""

    def progress(self, step: int, checks: StepChecks) -> None:
        """Compare where a point is; leave at the first difference and after the last point."""
        if not self._began and step != self._plan.start_step + 1:
            log_line("warning", message=_STRANGER.format(self._plan.start_step, step))
            exit_codes.leave(ConfigurationError.exit_code)
        self._began = True
        if step not in self._expected:
            return
        ours = self._weights()
        if self._comm.is_first:
            with Path(self._plan.record).open("a") as f:
                f.write(json.dumps([step, ours]) + "\n")
            log_line("bisect", step=step, equal=ours == self._expected[step])
        if self._comm.from_first(ours != self._expected[step]) or step >= self._plan.points[-1][0]:
            self._comm.meet(f"bisect/{step}", FAREWELL)
            exit_codes.leave(0)

    def alarm(self, alarm: Alarm) -> None:
        """The replay itself alarmed: the launch ends with exit code 3, and `sdc bisect` says so."""

    def close(self) -> None:
        """Nothing to send."""

    def _weights(self) -> str:
        from ._trail import raw, short
        from .digest import digest

        return short(raw(digest([p.detach() for p in self._module.parameters()])))


_STRANGER = (
    "sdc bisect: the replay was to begin after step {}, and its first update was {}: the script must take "
    "the checkpoint that CheckpointStore.resume() gives it"
)
