"""The sentences of a report: what may be said of a run's counts and of an incident's end. Pure.

In: `Run`, `Record`s. Out: claims, each with what it rests on and what it does not cover. Next: `page`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from ...kernels import Kernels, kernels_in
from ..screen import duration
from .bounds import Overhead
from .incidents import Record
from .run import Figures, LayerFigures, Run

ENDS = {
    "REPLACED": "The node was replaced.",
    "REPLACED_BY_HYPERPOD": "HyperPod had taken the node away by itself.",
    "REPLACEMENT_DEGRADED": "A replacement was requested and its end was not seen.",
    "TERMINATED_NO_DEMAND": "The node is gone, and nothing needed a new one.",
    "RELEASED": "The suspect passed its check and went back to work.",
    "REJECTED_KEPT": "A person decided against a replacement and kept the node out of the job.",
    "REJECTED_RELEASED": "A person decided that the node goes back to work.",
    "EXPIRED": "Nobody answered in time: nothing was replaced.",
    "OBSERVED": "Observe mode: nothing was touched.",
    "CLOSED": "The drill ended.",
    "JOINED": "Its evidence was added to another incident on the same node.",
}


@dataclass(frozen=True, slots=True)
class Claim:
    """What is said, in three sizes: a title, a figure, the sentences that say what it rests on."""

    title: str
    figure: str
    text: str


def headline(run: Run | None, records: Sequence[Record]) -> str:
    """The report in one or two sentences."""
    if run is None:
        return f"{end(records[0])} {_because(records[0])}".strip()
    figures, alarms = run.figures, len(run.alarms)
    said = "No alarm." if not alarms else f"{alarms} alarm{'s' * (alarms > 1)}."
    if figures is not None and figures.gpu_steps_audited:
        said += (
            f" {count(figures.gpu_steps_audited)} GPU-steps were computed again on another GPU and agreed "
            "bit for bit."
        )
    real = [r for r in records if not r.synthetic]
    return " ".join([said, *(f"Incident {r.id}: {end(r)}" for r in real[:3])])


def tiles(run: Run | None, records: Sequence[Record]) -> list[Claim]:
    """The figures that are read first."""
    found: list[Claim] = []
    if run is not None and run.figures is not None:
        f = run.figures
        share = (
            f"{100 * f.gpu_steps_audited / f.gpu_steps:.1f} % of {count(f.gpu_steps)}" if f.gpu_steps else ""
        )
        found.append(Claim("GPU-steps audited", count(f.gpu_steps_audited), share))
        found.append(Claim("bytes compared", _size(f.bytes_replayed + f.bytes_of_weights), "bit by bit"))
        if f.longest_gap is not None:
            found.append(Claim("steps to catch", count(f.longest_gap), "at most, for a persistent fault"))
        if f.alarms_at_most is not None and f.alarms_at_most < 1:
            found.append(
                Claim("audit alarms per audit", f"< {_rate(f.alarms_at_most)}", "at 95 %, true or false")
            )
        if f.overhead is not None:
            found.append(Claim("overhead", percent(f.overhead.share), "of audits and weight checks"))
    if run is not None:
        found.append(
            Claim("alarms", str(len(run.alarms)), "of all starts" if run.alarms else "none at any start")
        )
    if run is None:
        alarm = records[0].alarm
        if alarm is not None:
            steps = alarm.suspect_window[1] - alarm.suspect_window[0] + 1
            found.append(
                Claim("to detect", f"{count(steps)} step{'s' * (steps > 1)}", "at most: the suspect window")
            )
        for span in records[0].spans:
            took = "-" if span.seconds is None else duration(span.seconds)
            found.append(Claim(f"to {span.name}", took, span.said))
    return found


def what_follows(f: Figures) -> list[Claim]:
    """What follows from the counts of a run, each with what it rests on."""
    found = []
    if f.longest_gap is not None:
        tail = f.since_last_audit or 0
        found.append(
            Claim(
                "A persistent fault of the audited kind",
                f"caught within {count(f.longest_gap)} steps",
                f"Between two passed audits lay at most {count(f.longest_gap)} steps. A fault that was there "
                "at every step since it began, and shows in what audits compute, cannot have lived longer. "
                + (
                    f"The last {count(tail)} steps before the last checkpoint were not audited yet."
                    if tail
                    else "The last checkpoint's own step was audited."
                ),
            )
        )
    else:
        found.append(
            Claim("A persistent fault", "no bound", "No audit has passed: only checks 1 and 3 were made.")
        )
    if f.alarms_at_most is not None:
        found.append(
            Claim(
                "False alarms of audits",
                f"fewer than {_rate(f.alarms_at_most)} per audited step, at 95 %"
                if f.alarms_at_most < 1
                else "no bound: too few audits",
                f"{count(f.audit_alarms)} alarm{'s' * (f.audit_alarms != 1)} of audits in "
                f"{count(f.audits + f.audit_alarms)} audited steps, each of which compared all GPUs at once. "
                f"The bound counts every such alarm as if it was false.{_others(f)}",
            )
        )
    found.append(
        Claim(
            "Weights",
            f"{count(f.weight_checks)} times equal",
            f"All replicas were compared {count(f.weight_checks)} times and held the same bits, "
            f"{_size(f.bytes_of_weights)} in all.",
        )
    )
    if f.layers is not None:
        found.append(_of_layers(f.layers))
    if f.audits_skipped:
        found.append(
            Claim(
                "Audits that were due and not made",
                count(f.audits_skipped),
                "Nothing could be compared at these steps; they count as not audited. The notes say why.",
            )
        )
    if f.overhead is not None:
        found.append(_of_overhead(f, f.overhead))
    return found


def _others(f: Figures) -> str:
    if not f.other_alarms:
        return ""
    many = f.other_alarms > 1
    return f" {count(f.other_alarms)} alarm{'s' * many} of other checks {'are' if many else 'is'} not in it."


def _of_overhead(f: Figures, found: Overhead) -> Claim:
    kinds = "; ".join(f"{count(n)} {kind}: {mean:.3f} s each" for kind, n, mean in found.by_kind)
    text = (
        "What audits and weight checks took beyond the same steps without them; the check for NaN and Inf is "
        f"part of every step and not in this figure. {kinds}."
    )
    if (budget := f.schedule.get("overhead_budget")) is not None:
        more = "" if f.schedule.get("max_poisoned_steps") is None else ", and what max_poisoned_steps needs"
        text += (
            f" The budget of {percent(budget)} is what the pace aims at for audits, on average, once it has "
            "measured some. Beyond it, and in this figure, are weight checks, audits at checkpoints, and the "
            f"closer ones for 100 steps after each start and each suspicion{more}."
        )
    return Claim("Overhead", percent(found.share), text)


def _of_layers(f: LayerFigures) -> Claim:
    """One block of a step each: what was seen of steps without a whole audit."""
    skipped = f" {count(f.skipped)} more were due and could not be made; the log says why." * bool(f.skipped)
    return Claim(
        "Blocks of ordinary steps",
        f"{count(f.passed)} layer audits passed",
        f"Another GPU computed {count(f.gpu_blocks)} blocks of training steps again and got the same bits of "
        f"outputs and gradients, {_size(f.nbytes)} in all; {count(f.covered)} of the model's "
        f"{count(f.blocks)} blocks passed at least once. The other blocks of those steps were not "
        f"compared.{skipped}",
    )


def audited(f: Figures) -> str:
    """What was audited, and how."""
    often = _often(f.schedule)
    how = _HOW[f.kernels]
    mixed = 0 < f.audits_forced < f.audits
    some = f" {count(f.audits_forced)} of the audits ran the kernels of every step." if mixed else ""
    loss = "" if f.loss_audited or not f.audits else " The loss function itself was not audited."
    return (
        f"{count(f.gpu_steps)} GPU-steps were applied from step {count(f.since_step)} to {count(f.step)}, on "
        f"{f.world_size} GPUs, in {f.starts} start{'s' * (f.starts > 1)}. "
        + (f"{often}{_at_saves(f.schedule)}, each" if often else "When asked for, each")
        + f" GPU computed the micro-batch of a peer again, {how}, bit by bit.{some}{loss}"
    )


def kernels(name: str) -> str:
    """Which kernels audits exercise, by the name that an alarm has."""
    found = kernels_in({"kernels": name})
    return name if found is None else found.audited


_GRADIENTS = "and compared loss, outputs and every local gradient"
_HOW = {
    Kernels.SWITCHED: f"with deterministic kernels, which audited steps alone run, {_GRADIENTS}",
    Kernels.FORCED: f"with the kernels of every step, {_GRADIENTS}",
    Kernels.DEFAULT: "with its default kernels, forward only, and compared loss and outputs",
}


def _often(schedule: Mapping[str, Any]) -> str:
    """How often audits were due; "" when never by themselves."""
    poisoned, budget = schedule.get("max_poisoned_steps"), schedule.get("overhead_budget")
    wishes = [f"at most {count(poisoned)} poisoned steps"] if poisoned is not None else []
    wishes += [f"{percent(budget)} of the time for audits on average"] if budget is not None else []
    if wishes:
        return f"As often as the outcome asked for ({', '.join(wishes)})"
    every = schedule.get("audit_every")
    return f"Every {count(every)} steps" if every else ""


def _at_saves(schedule: Mapping[str, Any]) -> str:
    strict = schedule.get("strict", True) and schedule.get("ckpt_every", 1) is not None
    return ", and at checkpoints" if strict else ""


def end(record: Record) -> str:
    """How an incident ended, in a sentence."""
    if record.closed_at is None:
        return f"Still open ({record.state})."
    said = ENDS.get(record.state, f"Left to a person ({record.state}).")
    if record.state == "REPLACED" and record.new_instance_id:
        said = f"{record.instance_id} was replaced by {record.new_instance_id}."
    if record.resumed_from_step is not None:
        said += f" The job came back from step {count(record.resumed_from_step)}."
    return said


def _because(record: Record) -> str:
    row = f"decision row {record.row}" if record.row else "no decision row"
    return f"Because of {row}: {record.reason.rstrip('.')}." if record.reason else ""


def count(number: int) -> str:
    """`1,234,567`."""
    return f"{number:,}"


def _size(number: float) -> str:
    for unit in ("bytes", "kB", "MB", "GB", "TB", "PB"):
        if number < 1000 or unit == "PB":
            return f"{number:.0f} {unit}" if unit == "bytes" else f"{number:.1f} {unit}"
        number /= 1000
    raise AssertionError("unreachable")


def _rate(rate: float) -> str:
    return f"1 in {int(1 / rate):,}" if rate < 0.1 else f"{rate:.2f}"


def percent(share: float) -> str:
    """`12.3 %` of a share of 1."""
    return f"{100 * share:.1f} %"


def when(at: datetime | str | None) -> str:
    """A moment for people, UTC."""
    if isinstance(at, datetime):
        return at.strftime("%Y-%m-%d %H:%M:%S UTC")
    return str(at or "-").replace("T", " ").replace("Z", " UTC")
