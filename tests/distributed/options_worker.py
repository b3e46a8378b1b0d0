"""One of four ranks: what is off by default, and what a run with it ends with. Usage: OUT_DIR."""

from __future__ import annotations

import sys
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from tests.distributed import kernel_cases, pace_cases
from tests.distributed.cases import Case
from tests.distributed.models_worker import _attach, _build, _state, run_all, train
from tests.distributed.recording import RecordingReporter
from training_agent.schedule import ScheduleWarning


def resume(case: Case, then: Case, rank: int, at: int = 4) -> dict[str, Any]:
    """Train up to `at`, and on from there as a new process would."""
    loop, _ = _build(case, rank, {})
    torch.manual_seed(50 + rank)
    _attach(case, loop)
    for step in range(1, at + 1):
        case.step(loop, step)
    loop.guard.before_save()
    kept = loop.plain.state_dict(), loop.optimizers[0].state_dict(), torch.get_rng_state()
    manifest = loop.guard.manifest()
    loop.guard.close()
    again, _ = _build(then, rank, {})
    again.plain.load_state_dict(kept[0])
    again.optimizers[0].load_state_dict(kept[1])
    _attach(then, again)
    again.guard.after_load(manifest)
    torch.set_rng_state(kept[2])
    for step in range(at + 1, then.steps + 1):
        then.step(again, step)
    out = {"error": "", "manifest": again.guard.manifest(), "after": _state(again.plain, again.optimizers)}
    again.guard.close()
    return out


def paced(rank: int, how: dict[str, Any]) -> dict[str, Any]:
    """Train by outcome, and say what the reporter was told: which steps were audited, and the rate."""
    clock, reporter = pace_cases.Clock(), RecordingReporter()
    with pace_cases.short(clock):
        out = train(pace_cases.case(clock, reporter, **how), rank, guarded=True)
    out["audited"] = reporter.noted()["audited"]
    out["rates"] = {step: checks.audit_every for step, checks in reporter.steps}
    return out


def scenarios(rank: int) -> dict[str, Callable[[], dict[str, Any]]]:
    """All runs by name."""
    runs: dict[str, Callable[[], dict[str, Any]]] = {}
    for name, case, guarded, strike in kernel_cases.runs():
        runs[f"kernels: {name}"] = lambda case=case, guarded=guarded, strike=strike: train(
            case, rank, guarded=guarded, strike=strike
        )
    forced, switched = kernel_cases.case("forced"), kernel_cases.case("switched")
    runs["kernels: forced: resumed"] = lambda: resume(forced, forced, rank)
    runs["kernels: forced: resumed switched"] = lambda: resume(forced, switched, rank)
    for name, how in pace_cases.CASES.items():
        runs[f"pace: {name}"] = lambda how=how: paced(rank, dict(how))
    return runs


if __name__ == "__main__":
    warnings.simplefilter("ignore", ScheduleWarning)
    torch.set_num_threads(1)
    run_all(Path(sys.argv[1]), scenarios)
