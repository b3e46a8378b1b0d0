"""One of four ranks: trains every case of `models`, guarded, unguarded and with a fault. Usage: OUT_DIR."""

from __future__ import annotations

import json
import os
import re
import sys
import warnings
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel
from torch.optim import Optimizer

from tests.distributed.cases import (
    CASES,
    COMPILED,
    HIDDEN,
    HIDDEN_ON_ONE,
    INDUCTOR,
    NOISY,
    RAGGED,
    SCALED,
    UNAUDITED,
    Case,
)
from tests.distributed.data_path import data_cases, unclipped
from tests.distributed.loops import Loop, other_environment, saved_each_time
from tests.distributed.models import batch_for
from tests.distributed.refused import REFUSED
from tests.distributed.small_model import fingerprint, settings_for
from training_agent import Schedule, attach
from training_agent._phase import Phase
from training_agent._warm_up import warm_up
from training_agent.contract import encode
from training_agent.errors import AgentError, SdcAlarm
from training_agent.schedule import ScheduleWarning

CPU = torch.device("cpu")
BAD = 1  # the faulty rank
Strike = Callable[[int, Phase], float | None]  # step, phase -> factor


def train(
    case: Case, rank: int, *, guarded: bool, strike: Strike | None = None, **notes: Any
) -> dict[str, Any]:
    """Train one case from a seeded start and say how it ended."""
    loop, states = _build(case, rank, notes)
    out: dict[str, Any] = {"alarm": None, "error": "", "notes": loop.notes, "states": states}
    out["start"] = fingerprint(loop.plain)
    step = [0]
    torch.manual_seed(50 + rank)
    try:
        if guarded:
            _attach(case, loop)
        else:
            _warm_up(loop)
        if strike is not None and (rank == BAD or case.compiled):
            _insert(case, loop, lambda: strike(step[0], loop.guard.phase) if rank == BAD else None)
        for step[0] in range(1, case.steps + 1):
            case.step(loop, step[0])
        if guarded:
            loop.guard.close()
    except AgentError as e:
        out["error"] = str(e)
        if isinstance(e, SdcAlarm):
            out["alarm"] = encode(e.alarm)
    out["left on"] = torch.are_deterministic_algorithms_enabled()
    if loop.guard is not None:
        out["guard step"] = loop.guard.step
        out["manifest"] = loop.guard.manifest()
        with suppress(SdcAlarm):  # raised before
            loop.guard.close()
    out["ended at"] = step[0]
    out["after"] = _state(loop.plain, loop.optimizers)
    return out


def _build(case: Case, rank: int, notes: dict[str, Any]) -> tuple[Loop, list[list[str]]]:
    """The case's objects, and a list that gets the state right before each update."""
    if "torch._dynamo" in sys.modules:
        torch._dynamo.reset()
        torch._dynamo.utils.counters.clear()
    compiled = case.compiled if rank in case.compiling else ""
    torch.manual_seed(5)
    plain = case.build()
    wrapped: Any = torch.compile(plain, backend=case.backend) if compiled == "inside" else plain
    model: Any = DistributedDataParallel(wrapped, **case.ddp)
    if compiled == "around":
        model = torch.compile(model, backend=case.backend)
    loop = Loop(model, plain, case.optimizers(plain), case.loss or _loss, rank, None, notes=notes)
    if case.scaler:
        loop.scaler = torch.amp.GradScaler("cpu", init_scale=case.scaler, growth_interval=1000)
    if case.prepare is not None:
        case.prepare(loop)
    states: list[list[str]] = []
    for optimizer in loop.optimizers:
        optimizer.register_step_pre_hook(lambda *_: states.append(_state(plain, loop.optimizers)))
    return loop, states


def _attach(case: Case, loop: Loop) -> None:
    loop.guard = attach(
        _ddp(loop.model) if case.hidden else loop.model,
        loop.optimizers if len(loop.optimizers) > 1 else loop.optimizers[0],
        compute_loss=case.loss,
        schedule=case.schedule,
        settings=settings_for(loop.rank),
        **case.options,
    )
    if case.loss is not None and not case.past_loss:
        loop.loss = loop.guard.compute_loss


def _loss(model: nn.Module, batch: dict[str, Tensor]) -> Tensor:
    return nn.functional.cross_entropy(model(batch["x"]), batch["y"])


def _warm_up(loop: Loop) -> None:
    if "no warm-up" in loop.notes:
        return

    def forward() -> Tensor:
        batch = batch_for(loop.rank, 1)
        if "returned" in loop.notes:
            return loop.model(batch["x"], batch["y"])["loss"]
        return loop.loss(loop.model, batch)

    warm_up(_ddp(loop.model), CPU, forward, lambda loss: loss.backward(), strict=True)


def _ddp(model: Any) -> DistributedDataParallel:
    return getattr(model, "_orig_mod", model)


def _insert(case: Case, loop: Loop, factor: Callable[[], float | None]) -> None:
    """Put a fault in. A hook breaks a compiled graph in two, so that healthy ranks need it as well."""
    hook = _hook(factor)
    loop.plain.down.register_forward_hook(torch.compiler.disable(hook) if case.compiled else hook)


def _hook(factor: Callable[[], float | None]) -> Callable[[nn.Module, Any, Tensor], Tensor | None]:
    def hook(_module: nn.Module, _args: Any, output: Tensor) -> Tensor | None:
        by = factor()
        if by is None:
            return None
        delta = torch.zeros_like(output)
        value = output.detach().reshape(-1)[3]
        delta.view(-1)[3] = value * by - value
        return output + delta

    return hook


def _state(model: nn.Module, optimizers: list[Optimizer]) -> list[str]:
    import hashlib

    digest = hashlib.sha256()
    for optimizer in optimizers:
        for state in optimizer.state.values():
            for key in sorted(state):
                value = state[key]
                if isinstance(value, Tensor) and bool(value.any()):  # moments that were made, not yet used
                    digest.update(value.contiguous().view(-1).view(torch.uint8).numpy().tobytes())
    rng = hashlib.sha256(torch.get_rng_state().numpy().tobytes()).hexdigest()[:16]
    return [fingerprint(model), digest.hexdigest()[:16], rng]


def persistent(step: int, phase: Phase) -> float | None:
    return 1000.0 if step >= 3 and phase is not Phase.WARM_UP else None


def once(at: int, factor: float) -> Strike:
    """One firing: a retried step is right."""
    fired: list[int] = []

    def strike(step: int, phase: Phase) -> float | None:
        if step != at or phase is not Phase.TRAINING or fired:
            return None
        fired.append(step)
        return factor

    return strike


def nan_at(at: int) -> Strike:
    return once(at, float("nan"))


def x1000_at(at: int) -> Strike:
    return once(at, 1000.0)


def from_the_start(step: int, phase: Phase) -> float | None:
    return 1000.0 if phase is not Phase.WARM_UP else None


def scenarios(rank: int) -> dict[str, Callable[[], dict[str, Any]]]:
    """All runs by name."""
    runs: dict[str, Callable[[], dict[str, Any]]] = {}
    for name, case in CASES.items():
        runs |= _audited(name, case, rank)
    for name, case in UNAUDITED.items():
        runs[f"{name}: unguarded"] = lambda case=case: train(case, rank, guarded=False)
        runs[f"{name}: clean"] = lambda case=case: train(case, rank, guarded=True)
        runs[f"{name}: nan"] = lambda case=case: train(case, rank, guarded=True, strike=nan_at(5))
    runs["noisy backward"] = lambda: train(NOISY, rank, guarded=True)
    runs["noisy backward: x1000"] = lambda: train(NOISY, rank, guarded=True, strike=persistent)
    for name, (case, _) in REFUSED.items():
        runs[name] = lambda case=case: train(case, rank, guarded=True)
    runs["fault from the start"] = lambda: train(Case(), rank, guarded=True, strike=from_the_start)
    runs["past compute_loss"] = lambda: train(Case(past_loss=True), rank, guarded=True)
    moved = Case(step=other_environment)
    runs["environment"] = lambda: train(moved, rank, guarded=True, strike=persistent)
    for name, case in data_cases(rank).items():
        runs[name] = lambda case=case: train(case, rank, guarded=True)
    for policy in ("retry", "skip", "warn"):
        # no clipping: a retried step can repeat only what it knows of
        case = Case(step=unclipped, options={"policy": policy})
        runs[f"{policy}: unguarded"] = lambda case=case: train(case, rank, guarded=False)
        runs[f"{policy}: once"] = lambda case=case: train(case, rank, guarded=True, strike=x1000_at(4))
        runs[f"{policy}: nan"] = lambda case=case: train(case, rank, guarded=True, strike=nan_at(5))
        runs[f"{policy}: x1000"] = lambda case=case: train(case, rank, guarded=True, strike=persistent)
    deferred = replace(CASES["deferred"], options={"mode": "deferred", "policy": "skip"})
    runs["skip, deferred: nan"] = lambda: train(deferred, rank, guarded=True, strike=nan_at(5))
    mixed = replace(CASES["float32 inside autocast"], options={"policy": "retry"})
    runs["float32 inside autocast: retried"] = lambda: train(mixed, rank, guarded=True, strike=nan_at(5))
    clipped = Case(options={"policy": "retry"})
    runs["retry, clipped: nan"] = lambda: train(clipped, rank, guarded=True, strike=nan_at(5))
    last = replace(CASES["deferred"], schedule=Schedule(2, 2, None))
    runs["deferred: nan in the last step"] = lambda: train(last, rank, guarded=True, strike=nan_at(7))
    saved = replace(CASES["deferred"], step=saved_each_time)
    runs["deferred, before a save: nan"] = lambda: train(saved, rank, guarded=True, strike=nan_at(5))
    for kind in SCALED:
        case = replace(CASES[kind], steps=12)
        runs[f"{kind}: overflows"] = lambda case=case: train(case, rank, guarded=True, overflows=(2, 6, 9))
        long = replace(CASES[kind], steps=24)
        runs[f"{kind}: overflows forever"] = lambda case=long: train(
            case, rank, guarded=True, overflows=range(3, 99)
        )
    return runs


def compiled_scenarios(rank: int) -> dict[str, Callable[[], dict[str, Any]]]:
    """Those that go through `torch.compile`, by name."""
    runs: dict[str, Callable[[], dict[str, Any]]] = {}
    for name, case in {**COMPILED, **INDUCTOR}.items():
        runs |= _audited(name, case, rank)
        # after the first audit, which shows that replays reproduce the steps
        runs[f"{name}: once"] = lambda case=case: train(case, rank, guarded=True, strike=x1000_at(4))
    for name, case in {**COMPILED, "hidden": HIDDEN}.items():
        # Without a loss function the warm-up runs inside the compiled call, so uncompiled, and DDP lays its
        # buckets out by the order of that backward.
        if case.loss is None:
            silent = replace(case, schedule=Schedule(None, 2, None))
            runs[f"{name}: unguarded"] = lambda silent=silent: train(silent, rank, guarded=True)
    runs["hidden: clean"] = lambda: train(HIDDEN, rank, guarded=True)
    runs["hidden: nan"] = lambda: train(HIDDEN, rank, guarded=True, strike=nan_at(5))
    runs["uneven: ragged: clean"] = lambda: train(RAGGED, rank, guarded=True)
    runs["uneven: ragged: x1000"] = lambda: train(RAGGED, rank, guarded=True, strike=persistent)
    runs["uneven: ragged: once"] = lambda: train(RAGGED, rank, guarded=True, strike=x1000_at(4))
    runs["uneven: one compiler: clean"] = lambda: train(HIDDEN_ON_ONE, rank, guarded=True)
    for name, strike in {"x1000": persistent, "start": from_the_start, "nan": nan_at(4)}.items():
        for kind, case in {"ragged": RAGGED, "one compiler": HIDDEN_ON_ONE}.items():
            runs[f"uneven, long: {kind}: {name}"] = lambda case=case, strike=strike: train(
                case, rank, guarded=True, strike=strike
            )
    runs["hidden: start"] = lambda: train(HIDDEN, rank, guarded=True, strike=from_the_start)
    return runs


def _audited(name: str, case: Case, rank: int) -> dict[str, Callable[[], dict[str, Any]]]:
    return {
        f"{name}: unguarded": lambda: train(case, rank, guarded=False),
        f"{name}: clean": lambda: train(case, rank, guarded=True),
        f"{name}: x1000": lambda: train(case, rank, guarded=True, strike=persistent),
        f"{name}: nan": lambda: train(case, rank, guarded=True, strike=nan_at(5)),
    }


def main(out: Path, compiled: str = "") -> None:
    """Run what is not compiled, or of the compiled runs those whose name begins with `compiled`."""
    warnings.simplefilter("ignore", ScheduleWarning)
    torch.set_num_threads(1)
    every = compiled_scenarios if compiled else scenarios
    run_all(out, lambda rank: {n: run for n, run in every(rank).items() if re.match(compiled, n)})


def run_all(out: Path, scenarios_of: Callable[[int], dict[str, Callable[[], dict[str, Any]]]]) -> None:
    """One rank's life: each scenario in turn, and what it ended with."""
    rank = int(os.environ["RANK"])
    dist.init_process_group("gloo", timeout=timedelta(seconds=90))
    results = {name: run() for name, run in scenarios_of(rank).items()}
    (out / f"{rank}.json").write_text(json.dumps(results, default=str))
    dist.destroy_process_group()


if __name__ == "__main__":
    main(Path(sys.argv[1]), *sys.argv[2:])
