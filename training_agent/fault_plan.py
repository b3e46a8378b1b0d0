"""Which fault to inject, where and when: text from outside in, a checked plan out. Pure.

Next step: `training_agent.faults.Injector` puts the plan into effect. Use it from there.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

from .errors import ConfigurationError
from .fault_shapes import Element, Flip, Shape, Value, scatter
from .fault_spec import EVERYWHERE, REPLAYS, STEP_ONLY, FaultSpec, Persistence, Where
from .schedule import Schedule

TWO_GPUS_MIN_RANKS = 5  # with four, two bad GPUs leave no strict majority


class Fault(str, Enum):
    """What can be injected; the values are the names that users type."""

    NONE = "none"
    NAN_ONCE = "nan-once"
    FORWARD = "forward-x1000"
    FORWARD_ONCE = "forward-x1000-once"
    REPLAYER = "replayer-x1000"
    WEIGHT_GRAD = "weight-grad-x1000"
    WEIGHT_FLIP = "weight-flip"
    TWO_GPUS = "two-gpus"


MEANING = {
    Fault.NONE: "no fault: training must end without an alarm",
    Fault.NAN_ONCE: "one NaN in the forward output, at FAULT_STEP only",
    Fault.FORWARD: "one element of the forward output x1000, from FAULT_STEP on, in replays too",
    Fault.FORWARD_ONCE: "the same once, at the first audit step at or after FAULT_STEP",
    Fault.REPLAYER: "the same from FAULT_STEP on, but only when the GPU replays for others",
    Fault.WEIGHT_GRAD: "one element of a weight's gradient x1000, from FAULT_STEP on, in replays too",
    Fault.WEIGHT_FLIP: "bit 22 of one float32 weight flipped after the update of FAULT_STEP",
    Fault.TWO_GPUS: "forward-x1000 on two GPUs of two nodes at once",
}

_ONCE = frozenset({Fault.NAN_ONCE, Fault.FORWARD_ONCE, Fault.WEIGHT_FLIP})
FLIPPED_BIT = 22  # the highest bit of a float32 mantissa


def describe() -> str:
    """All faults, one per line, the name first."""
    width = max(len(f.value) for f in Fault)
    return "\n".join(f"{f.value:<{width}}  {MEANING[f]}" for f in Fault)


@dataclass(frozen=True, slots=True)
class FaultPlan:
    """What strikes where and when; made by `parse`, equal on all ranks."""

    fault: Fault
    ranks: tuple[int, ...]  # that the fault binds to at the first start; empty without a fault
    step: int  # the step at which it strikes, or from which on
    seed: int

    @classmethod
    def parse(
        cls,
        name: str,
        rank: int | str,
        step: int | str,
        seed: int | str,
        schedule: Schedule,
        *,
        total_steps: int,
        world_size: int,
        gpus_per_node: int,
    ) -> FaultPlan:
        """Check a fault given as text, before training.

        Args:
            name: a value of `Fault`.
            rank, step, seed: numbers, or their text as environment variables hold it.
            schedule: of the guarded run; one-off finite compute faults wait for its next audit.
            total_steps: the last step of the run.
            world_size, gpus_per_node: of the job, every node with the same number of ranks.

        Raises:
            ConfigurationError: the fault does not exist, or could not be caught; the text says why.
        """
        fault = _known(name)
        victim, first = _number("FAULT_RANK", rank), _number("FAULT_STEP", step)
        plan_seed = _number("SEED", seed)
        if fault is Fault.NONE:
            return cls(fault, (), first, plan_seed)
        if not 0 <= victim < world_size:
            raise ConfigurationError(
                f"FAULT_RANK={victim}: this job has ranks 0 to {world_size - 1}; choose one of them"
            )
        if not 1 <= first <= total_steps:
            raise ConfigurationError(
                f"FAULT_STEP={first}: this run has steps 1 to {total_steps}; choose one of them"
            )
        strike = _strike_step(fault, first, schedule, total_steps)
        if first == 1 and gpus_per_node == 1 and fault not in _ONCE:
            raise ConfigurationError(
                "FAULT_STEP=1 with one GPU per node: a GPU that is wrong from its first step on cannot be "
                f"told from a node with other software, so {fault.value} would be seen and nobody named; "
                "choose FAULT_STEP at least 2, or two GPUs per node"
            )
        ranks: tuple[int, ...] = (victim,)
        if fault is Fault.TWO_GPUS:
            ranks = (victim, _second_rank(victim, plan_seed, world_size, gpus_per_node))
        return cls(fault, ranks, strike, plan_seed)

    @property
    def once(self) -> bool:
        """Whether it strikes a single time, ever."""
        return self.fault in _ONCE

    @property
    def specs(self) -> tuple[FaultSpec, ...]:
        """The plan in the injector's own terms, one fault for each bad GPU."""
        where, shape = _SITES.get(self.fault, (Where.FORWARD_OUTPUT, Element(1000.0)))
        phases = STEP_ONLY if self.once else EVERYWHERE
        if self.fault is Fault.REPLAYER:
            phases = REPLAYS
        often = Persistence.ONCE if self.once else Persistence.ALWAYS
        return tuple(
            FaultSpec(where, shape, rank, self.step, often, phases=phases, seed=self.seed)
            for rank in self.ranks
        )


_SITES: dict[Fault, tuple[Where, Shape]] = {
    Fault.NAN_ONCE: (Where.FORWARD_OUTPUT, Value(float("nan"))),
    Fault.WEIGHT_GRAD: (Where.WEIGHT_GRADIENT, Element(1000.0)),
    Fault.WEIGHT_FLIP: (Where.WEIGHTS, Flip((FLIPPED_BIT,))),
}


def _known(name: str) -> Fault:
    try:
        return Fault(name)
    except ValueError:
        known = ", ".join(f.value for f in Fault)
        raise ConfigurationError(f"FAULT={name!r} does not exist; choose one of {known}") from None


def _number(name: str, value: int | str) -> int:
    try:
        if isinstance(value, (bool, float)):
            raise ValueError
        return int(value)
    except ValueError:
        raise ConfigurationError(f"{name}={value!r} is no whole number") from None


def _strike_step(fault: Fault, step: int, schedule: Schedule, total_steps: int) -> int:
    """The step at which the fault strikes (first), once it is sure that a check follows."""
    if fault is Fault.NAN_ONCE:
        return step
    weights = fault is Fault.WEIGHT_FLIP
    check = schedule.next_weight_check(step) if weights else schedule.next_audit(step)
    name = "weight check" if weights else "audit"
    if check is None:
        raise ConfigurationError(
            f"FAULT={fault.value} is only seen by an audit and the schedule has none; set audit_every"
        )
    if check > total_steps:
        due = schedule.weights_due if weights else schedule.audit_due
        last = next((s for s in range(total_steps, 0, -1) if due(s)), None)
        remedy = f"choose FAULT_STEP at most {last}" if last else f"train for at least {check} steps"
        raise ConfigurationError(
            f"FAULT_STEP={step} is after the last {name} of this run of {total_steps} steps: "
            f"{fault.value} would never be seen; {remedy}"
        )
    return check if fault is Fault.FORWARD_ONCE else step


def _second_rank(first: int, seed: int, world_size: int, gpus_per_node: int) -> int:
    nodes = world_size // gpus_per_node
    if world_size < TWO_GPUS_MIN_RANKS or nodes < 2:
        raise ConfigurationError(
            f"FAULT=two-gpus needs at least {TWO_GPUS_MIN_RANKS} ranks on two nodes, this job has "
            f"{world_size} on {nodes}: with fewer, two bad GPUs leave no strict majority of healthy ones; "
            "add nodes or GPUs"
        )
    return (first + gpus_per_node * (1 + scatter(seed) % (nodes - 1))) % world_size
