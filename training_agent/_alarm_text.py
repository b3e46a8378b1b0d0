"""The alarm as a text for people: what happened, where, what remains possible, what to do next. Pure.

Comes in: the `Alarm`. Goes out: the message of `SdcAlarm`. Next: whoever reads the log; `restarts` takes
whose batch to look at from here.
"""

from __future__ import annotations

from .contract import Alarm, Check, Finding, Place, SecondConfirmation, Verdict
from .kernels import Kernels

_HEADLINE = {
    Check.NONFINITE: "a gradient is NaN, Inf or too large for a float32 norm",
    Check.REPLAY: "a micro-batch computed again gives other bits",
    Check.WEIGHTS: "replicas hold different weights or optimizer state",
    Check.REDUCTION: "the all-reduce did not give the mean of the gradients",
}


def message(alarm: Alarm) -> str:
    """Say what happened, where, and what to do next."""
    after_update = alarm.check is Check.WEIGHTS and not alarm.pairs  # otherwise a replay brought it to light
    applied = "in what its update left behind" if after_update else "before its update, which was not applied"
    lines = [f"SDC alarm at step {alarm.step}, {applied}: {_HEADLINE[alarm.check]}."]
    lines += [f"  {_sentence(f)}" for f in alarm.findings]
    if any(map(_repeats, alarm.findings)):
        lines.append(
            "  If it follows the rank to another node it is software: a hook, or a value that only it has."
        )
    lines.append(f"  Suspect window: {_window(alarm)}.")
    if alarm.kernels:
        lines.append(f"  Audited kernels: {Kernels(alarm.kernels).audited}.")
    lines += [f"  Note: {note}." for note in alarm.notes]
    lines.append(f"  Next: {_next(alarm)}.")
    return "\n".join(lines)


def batches_to_look_at(alarm: Alarm) -> str:
    """Whose batch several GPUs computed to the same NaN, as a request; "" where it is nobody's."""
    ranks = sorted({p.rank for f in alarm.findings if f.of_data for p in f.involved})
    if not ranks:
        return ""
    whose = f"rank{'s' if len(ranks) > 1 else ''} {', '.join(map(str, ranks[:8]))}"
    return (
        f"look at the batch of {whose} at step {alarm.step} first: it is data or numerics, and a start that "
        "goes back meets the same batch again"
    )


def where(place: Place) -> str:
    """Rank, node and GPU in words."""
    return f"rank {place.rank} on node {place.node}, GPU {place.gpu_uuid or f'number {place.local_rank}'}"


def _sentence(finding: Finding) -> str:
    if finding.place is not None:
        who = where(finding.place)
    elif finding.involved:
        who = "nobody named; involved: " + ", ".join(f"rank {p.rank} ({p.node})" for p in finding.involved)
    else:
        who = "nobody named"
    verdict = "" if finding.verdict in (None, Verdict.UNATTRIBUTABLE) else f" ({finding.verdict.value})"
    return f"{who}: {finding.kind.value}{verdict}: {finding.evidence}"


def _repeats(finding: Finding) -> bool:
    """A named rank that is wrong each time it is asked: its GPU, or a program that only it runs."""
    again = finding.second_confirmation is SecondConfirmation.REPEATS
    return finding.rank is not None and (finding.verdict is Verdict.PERSISTENT or again)


def _window(alarm: Alarm) -> str:
    """The suspect steps, and what passed last before them: what passed is named, for each check its own."""
    first, last = alarm.suspect_window
    steps = f"step {last}" if first == last else f"steps {first} to {last}"
    if alarm.of_reduction:
        return f"{steps} alone; each step's reduction is checked by itself"
    if alarm.check is Check.WEIGHTS:
        passed, what = alarm.last_weight_check_pass, "weight check"
        if passed is not None and first <= passed and first < last:  # of what is compared less often
            passed, what = first - 1, "comparison of what differs"
    else:
        passed, what = alarm.last_audit_pass, "audit"
    if passed is None:
        return f"{steps}; no {what} had passed before"
    return f"{steps}; the last {what} that passed was at step {passed}"


def _next(alarm: Alarm) -> str:
    first, point = alarm.suspect_window[0], alarm.resume_from
    if point is not None:
        then = f"resume from step {point.step}, {point.path}"
    elif first <= 1:
        then = "start over from the beginning: no checkpoint is from before step 1"
    else:
        then = f"no complete checkpoint from before step {first} is known; choose one by hand"
    return "; then ".join(filter(None, (batches_to_look_at(alarm), then)))
